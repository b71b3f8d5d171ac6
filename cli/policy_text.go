package cli

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/printable"
)

// line prints one line and escapes all values, because they can come from objects of the cluster.
func line(w io.Writer, format string, args ...any) {
	fmt.Fprintln(w, printable.Text(fmt.Sprintf(format, args...)))
}

func explanationText(w io.Writer, e *models.PolicyExplanation) {
	// The summary starts with the verdict.
	line(w, "%s%s", strings.ToUpper(string(e.Verdict)), strings.TrimPrefix(e.Summary, string(e.Verdict)))
	fmt.Fprintln(w)
	line(w, "From:  %s", partyText(&e.From))
	line(w, "To:    %s", partyText(&e.To))
	line(w, "Port:  %s", e.Port)
	if e.Service.Frontend != "" {
		serviceSideText(w, e)
		return
	}
	sidesText(w, e)
}

// serviceSideText prints the service, the verdict for each backend, and the details of one backend: the first denied one, or else the first.
func serviceSideText(w io.Writer, e *models.PolicyExplanation) {
	s := &e.Service
	fmt.Fprintln(w)
	line(w, "Service:  %s at %s (%s), for %s clients: %d backends", s.Name, s.Frontend, s.Type, s.Scope, s.Backends)
	if s.Message != "" {
		line(w, "  kernel: %s", s.Message)
	}
	if len(e.Backends) == 0 {
		return
	}
	shown := &e.Backends[0]
	for i := range e.Backends {
		b := &e.Backends[i]
		line(w, "  %s %s: %s", backendText(b), b.Port, b.Summary)
		if b.Verdict == models.PolicyVerdictDenied && shown.Verdict != models.PolicyVerdictDenied {
			shown = b
		}
	}
	if s.Missing > 0 {
		line(w, "  and %d that are no longer known", s.Missing)
	}
	if more := s.Backends - len(e.Backends) - s.Missing; more > 0 {
		line(w, "  and %d more, which were not evaluated", more)
	}
	fmt.Fprintln(w)
	line(w, "Towards %s, port %s:", partyText(&shown.To), shown.Port)
	sidesText(w, shown)
}

func backendText(b *models.PolicyExplanation) string {
	if b.To.Pod == "" {
		return b.To.Address
	}
	return b.To.Pod + " " + b.To.Address
}

func sidesText(w io.Writer, e *models.PolicyExplanation) {
	sideText(w, "Egress of the sender", &e.Egress)
	sideText(w, "Ingress of the receiver", &e.Ingress)
	fmt.Fprintln(w, "\nKnown connections:")
	for _, c := range e.Conntrack {
		line(w, "  %s", c)
	}
	switch {
	case e.ConntrackError != "":
		line(w, "  not read: %s", e.ConntrackError)
	case len(e.Conntrack) == 0:
		fmt.Fprintln(w, "  none")
	}
}

func partyText(p *models.PolicyParty) string {
	parts := []string{}
	for _, text := range []string{p.Pod, p.Address} {
		if text != "" {
			parts = append(parts, text)
		}
	}
	if p.Endpoint != 0 {
		parts = append(parts, "endpoint "+strconv.FormatInt(p.Endpoint, 10))
	}
	parts = append(parts, fmt.Sprintf("identity %d [%s]", p.Identity, strings.Join(p.Labels, " ")))
	if p.CIDR != "" {
		parts = append(parts, fmt.Sprintf("in %s (%d)", p.CIDR, p.CIDRIdentity))
	}
	return strings.Join(parts, ", ")
}

func sideText(w io.Writer, name string, s *models.PolicySide) {
	fmt.Fprintln(w)
	if !s.Here {
		line(w, "%s: not evaluated: %s", name, s.Message)
		return
	}
	line(w, "%s: %s", name, s.Verdict)
	line(w, "  %s", s.Message)
	if s.Audit.Verdict != s.Verdict {
		line(w, "  audit: it would be %s if policies in audit mode counted%s", s.Audit.Verdict, because(s.Audit.DecidedBy))
	}
	if len(s.Considered) > 0 {
		fmt.Fprintln(w, "  rules considered:")
	}
	for _, r := range s.Considered {
		mark, audit := "-", ""
		if r.Matches {
			mark = "*"
		}
		if r.Audit {
			audit = " (audit)"
		}
		line(w, "    %s %s %s%s: %s", mark, r.Policy, r.Path, audit, r.Text)
	}
	missesText(w, s)
	kernelText(w, &s.Kernel)
}

// missesText prints the nearest misses except the ones that the message already names.
func missesText(w io.Writer, s *models.PolicySide) {
	head := "  other rules that nearly allow it:\n"
	for _, r := range s.NearMisses {
		if !strings.Contains(s.Message, r.Text) {
			fmt.Fprint(w, head)
			line(w, "    %s", r.Text)
			head = ""
		}
	}
}

func because(rules []models.PolicyRuleUse) string {
	if len(rules) == 0 {
		return ""
	}
	return ": " + rules[0].Policy + " " + rules[0].Path
}

func kernelText(w io.Writer, k *models.PolicyKernel) {
	switch {
	case k.Verdict == "":
		line(w, "  kernel: not compared: %s", k.Message)
	case k.Agrees:
		line(w, "  kernel: agrees: policy %d, %s: %s", k.PolicyID, k.Verdict, cmp.Or(k.Entry, "no entry matches"))
	default:
		line(w, "  kernel: DIFFERS: policy %d, %s: %s: %s", k.PolicyID, k.Verdict, cmp.Or(k.Entry, "no entry matches"), k.Message)
	}
}

func differenceText(w io.Writer, d *models.PolicyDifference) {
	for _, list := range []struct {
		verb     string
		policies []string
	}{{"adds", d.Added}, {"replaces", d.Replaced}, {"deletes", d.Deleted}} {
		for _, p := range list.policies {
			line(w, "%s %s", list.verb, p)
		}
	}
	for _, p := range d.Problems {
		line(w, "%s: %s: %s", strings.TrimSpace(p.Policy+" "+p.Path), p.Reason, p.Message)
	}
	switch {
	case d.Flows == 0:
		fmt.Fprintln(w, "This node has no recorded flow to evaluate, so the effect of the change is unknown.")
	default:
		line(w, "Evaluated %d flows of this node, recorded since %s.", d.Flows, d.Since)
	}
	if d.Unknown > 0 {
		line(w, "%d more were skipped, because their endpoints or peers no longer exist.", d.Unknown)
	}
	if len(d.Denied)+len(d.Allowed) == 0 && d.Flows > 0 {
		fmt.Fprintln(w, "None of them would become denied or allowed.")
	}
	changesText(w, "would be DENIED", d.Denied)
	changesText(w, "would be ALLOWED", d.Allowed)
}

func changesText(w io.Writer, what string, changes []models.PolicyFlowChange) {
	if len(changes) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%d %s:\n", len(changes), what)
	var rows [][]string
	for i := range changes {
		c := &changes[i]
		rows = append(rows, []string{endText(&c.From), endText(&c.To), familyText(&c.From), c.Port, string(c.Direction), strconv.FormatInt(c.Count, 10), c.Last, c.Text})
	}
	table(w, []string{"FROM", "TO", "FAMILY", "PORT", "DIRECTION", "COUNT", "LAST", "WHY"}, rows)
}

func familyText(p *models.PolicyParty) string {
	switch {
	case p.Address == "":
		return "-"
	case strings.Contains(p.Address, ":"):
		return "IPv6"
	}
	return "IPv4"
}

func endText(p *models.PolicyParty) string { return cmp.Or(p.Pod, p.Address) }
