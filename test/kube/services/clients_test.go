package services_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// count is what the program talk says of a target.
type count struct {
	Target                 string
	Good, Failed, Reopened int
	Answers                map[string]int // by "SERVER PORT CLIENT"
	Errors                 []string
}

// clients are programs that talk to the Services of testdata/web.yaml all the time: in a pod, on a node and outside.
type clients struct {
	*world
	output map[string]func() (string, error) // what each has printed
}

// pause between two questions to a target keeps what clients need of the machine small.
const pause = "50ms"

func newClients(t *testing.T, w *world) *clients {
	t.Helper()
	inside := slices.Concat(of("tcp", "80", webIPv4, webIPv6), of("udp", "80", timeIPv4, timeIPv6), of("udp-connected", "80", timeIPv4, timeIPv6))
	command := func(program string, targets ...[]string) []string {
		return append([]string{program, "loop", "-every", pause}, slices.Concat(targets...)...)
	}
	output := map[string]func() (string, error){}
	// The two ways to a server are different pods': the port of one socket can be that of another which goes another way.
	for name, targets := range map[string][]string{"client": inside, "client-of-nodes": slices.Concat(of("tcp", webPort, w.b.IPv4, w.b.IPv6), of("udp", timePort, w.b.IPv4))} {
		if err := w.CreatePod(t.Context(), kube.Pod{Name: name, Node: w.a.Name, Image: image, Command: command("/bin/talk", targets)}); err != nil {
			t.Fatal(err)
		}
		// From the disk of the node, which can be read while the API server is away.
		output["pod "+name] = func() (string, error) {
			return w.a.Run(t.Context(), "sh", "-c", "tail -n 2 /var/log/pods/default_"+name+"_*/main/0.log | sed 's/^[^ ]* [^ ]* F //'")
		}
	}
	program := w.a.Tool("kube/talk")
	node, err := w.a.StartProcess("client", command(program, inside, of("tcp", webPort, "127.0.0.1", w.a.IPv4, w.a.IPv6))...)
	if err != nil {
		t.Fatal(err)
	}
	outside, err := w.StartOutside("client", command(program, of("tcp", webPort, w.a.IPv4, w.a.IPv6, w.b.IPv4, w.b.IPv6), of("udp", timePort, w.a.IPv4, w.b.IPv6))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := outside.Kill(); err != nil {
			t.Error(err)
		}
	})
	output["node"] = func() (string, error) { return node.Log(), nil }
	output["outside"] = func() (string, error) { return outside.Log(), nil }
	return &clients{w, output}
}

// counts are the latest, by who counts and its target.
func (c *clients) counts() (map[string]count, error) {
	all := map[string]count{}
	for who, output := range c.output {
		text, err := output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", who, err)
		}
		lines := strings.Split(text, "\n")
		if len(lines) < 2 {
			return nil, fmt.Errorf("the client %s has counted nothing", who)
		}
		var counts []count
		if err := json.Unmarshal([]byte(lines[len(lines)-2]), &counts); err != nil { // the last but one ends with its line
			return nil, fmt.Errorf("the client %s says %w\n%s", who, err, lines[len(lines)-2])
		}
		for _, one := range counts {
			all[who+" to "+one.Target] = one
		}
	}
	return all, nil
}

// enough are the answers of a target that show how it goes on.
const enough = 10

// until waits until enough answers of each target that came one after the other please check, and returns the counts. Answers are
// "SERVER PORT CLIENT".
func (c *clients) until(t *testing.T, what string, check func(answers []string) error) map[string]count {
	t.Helper()
	return c.untilOf(t, "", what, check)
}

// untilOf checks only the answers of targets of a network, which begins so.
func (c *clients) untilOf(t *testing.T, network, what string, check func(answers []string) error) (now map[string]count) {
	t.Helper()
	base, err := c.counts()
	if err == nil {
		err = c.WaitFor(t.Context(), "clients to have "+what, func() (err error) {
			if now, err = c.counts(); err != nil {
				return err
			}
			for name, one := range now {
				if one.Good < base[name].Good+enough {
					return fmt.Errorf("%s: %d answers, %d before; %d failed:\n  %s", name, one.Good, base[name].Good, one.Failed, strings.Join(one.Errors, "\n  "))
				}
			}
			for name, one := range now {
				if failed := check(more(base[name], one)); failed != nil && strings.HasPrefix(one.Target, network) {
					err = errors.Join(err, fmt.Errorf("%s: %w", name, failed))
				}
			}
			if err != nil {
				base = now
			}
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// more are the answers that came after an earlier count.
func more(before, now count) (answers []string) {
	for _, a := range slices.Sorted(maps.Keys(now.Answers)) {
		if now.Answers[a] > before.Answers[a] {
			answers = append(answers, a)
		}
	}
	return answers
}

// lost holds that no connection has failed since a moment. Datagrams may be lost between the end of a server and the moment at
// which the cluster says so; the log tells how many were.
func (c *clients) lost(t *testing.T, before, now map[string]count) {
	t.Helper()
	connections := 0
	for name, one := range now {
		good, failed := one.Good-before[name].Good, one.Failed-before[name].Failed
		switch {
		case strings.HasPrefix(one.Target, "udp"):
			t.Logf("%s: %d datagrams were answered, %d were lost, %d sockets opened again", name, good, failed, one.Reopened-before[name].Reopened)
		case failed > 0:
			t.Errorf("%s: %d connections failed; the last:\n  %s", name, failed, strings.Join(one.Errors, "\n  "))
		default:
			connections += good
		}
	}
	t.Logf("%d connections came about", connections)
}
