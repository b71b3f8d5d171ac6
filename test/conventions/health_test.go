package conventions

import (
	"regexp"
	"testing"
)

var (
	// healthCall matches a report of health with its literal or variable.
	healthCall = regexp.MustCompile("\\.(?:OK|Degraded|Stopped)\\((?:fmt\\.Sprintf\\()?(?:[\"`]([^\"`]+)|(\\w+)[,)])")
	// capitalized matches a message whose first word is capitalized; properNames matches the words that are written so.
	capitalized, properNames = regexp.MustCompile(`^[A-Z][a-z]`), regexp.MustCompile(`^(Cilium|(Kubernetes|Lease|Namespace|Node|Pod|Service)\b)`)
)

// healthMessages returns the texts with which health messages of a Go file begin. A variable has each literal that the file assigns to its name.
func healthMessages(source string) (texts []string) {
	for _, call := range healthCall.FindAllStringSubmatch(source, -1) {
		if call[2] == "" {
			texts = append(texts, call[1])
			continue
		}
		for _, value := range regexp.MustCompile(`\b`+call[2]+` :?= (?:fmt\.Sprintf\()?"([^"]+)`).FindAllStringSubmatch(source, -1) {
			texts = append(texts, value[1])
		}
	}
	return texts
}

// Operators read health messages together with errors, which begin in lower case.
func TestHealth_MessagesBeginInLowerCase(t *testing.T) {
	t.Parallel()
	found := 0
	for _, f := range files(t) {
		if f.test() {
			continue
		}
		for _, text := range healthMessages(string(f.source)) {
			if found++; capitalized.MatchString(text) && !properNames.MatchString(text) {
				t.Errorf("%s: the health message %q is capitalized: use lower case, or add a name to properNames", f.path, text)
			}
		}
	}
	if found < 150 {
		t.Errorf("only %d health messages found: the search is broken", found)
	}
}

func TestHealth_MessagesBeginInLowerCase_Finds(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]bool{
		`h.OK("Waiting for pods")`: true, `h.Degraded("Waiting", err)`: true, `h.Stopped(fmt.Sprintf("Waiting for %d", n))`: true, "h.OK(`Nodes ` + why)": true,
		`text := "Waiting"; h.OK(text)`: true, `text = fmt.Sprintf("Node %d, or "); h.OK(text)`: false, `h.OK("waiting"); log.Info("Waiting")`: false, `h.OK("MTU is known")`: false,
		`h.OK("IPv4 is off")`: false, `h.OK("CiliumNodes are read")`: false, `h.OK("Node one")`: false, `h.OK(row.Leader + " leads")`: false,
	} {
		texts := healthMessages(source)
		if found := len(texts) == 1 && capitalized.MatchString(texts[0]) && !properNames.MatchString(texts[0]); found != want {
			t.Errorf("%s: found: %v, want %v", source, found, want)
		}
	}
}
