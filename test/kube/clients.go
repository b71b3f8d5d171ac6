package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// Count is what the program talk says of a target, since its first answer.
type Count struct {
	Target                 string
	Asked                  int // also before the first answer
	Good, Failed, Reopened int
	Answers                map[string]int // by "SERVER PORT CLIENT"
	Errors                 []string       // the last few
}

// Clients are programs that talk to targets all the time.
type Clients struct {
	cluster *Cluster
	name    string // of processes that are no pods
	flags   []string
	output  map[string]func(context.Context) (string, error) // what each client has printed
}

// NewClients returns Clients without a program. The name distinguishes them from others of the cluster. Flags are those of "talk loop"; the pause between
// two questions to a target is 50 ms by default.
func (c *Cluster) NewClients(name string, flags ...string) *Clients {
	return &Clients{cluster: c, name: name, flags: flags, output: map[string]func(context.Context) (string, error){}}
}

// AddPod adds a client in a new pod, of which name, labels and node count. The pod must be on a node, and is not waited for.
func (c *Clients) AddPod(ctx context.Context, pod Pod, targets ...string) error {
	pod.Image, pod.Command = TalkImage, c.command("/bin/talk", targets)
	if err := c.cluster.CreatePod(ctx, pod); err != nil {
		return err
	}
	n, namespace := c.cluster.Node(pod.Node), orElse(pod.Namespace, c.cluster.Namespace)
	// From the disk of the node, which can be read while the API server is away.
	c.output["pod "+pod.Name] = func(ctx context.Context) (string, error) {
		return n.Run(ctx, "sh", "-c", "tail -n 2 /var/log/pods/"+namespace+"_"+pod.Name+"_*/main/0.log | sed 's/^[^ ]* [^ ]* F //'")
	}
	return nil
}

// AddNode adds a client that is a process of a node.
func (c *Clients) AddNode(n *Node, targets ...string) error {
	process, err := n.StartProcess(c.name, c.command(n.Tool("kube/talk"), targets)...)
	if err != nil {
		return err
	}
	c.output[n.Name] = func(context.Context) (string, error) { return process.Log(), nil }
	return nil
}

// AddOutside adds a client outside of all nodes. It ends with the test.
func (c *Clients) AddOutside(t testing.TB, targets ...string) error {
	t.Helper()
	process, err := c.cluster.StartOutside(c.name, c.command(c.cluster.talk(), targets)...)
	if err != nil {
		return err
	}
	t.Cleanup(func() {
		if err := process.Kill(); err != nil {
			t.Error(err)
		}
	})
	c.output["outside"] = func(context.Context) (string, error) { return process.Log(), nil }
	return nil
}

func (c *Clients) command(program string, targets []string) []string {
	return slices.Concat([]string{program, "loop"}, c.flags, targets)
}

// Counts are the latest, by who counts and its target.
func (c *Clients) Counts(ctx context.Context) (map[string]Count, error) {
	all := map[string]Count{}
	for who, output := range c.output {
		text, err := output(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", who, err)
		}
		lines := strings.Split(text, "\n")
		if len(lines) < 2 {
			return nil, fmt.Errorf("the client %s has counted nothing", who)
		}
		var counts []Count
		if err := json.Unmarshal([]byte(lines[len(lines)-2]), &counts); err != nil { // the last but one ends with its line
			return nil, fmt.Errorf("the client %s says %w\n%s", who, err, lines[len(lines)-2])
		}
		for _, one := range counts {
			all[who+" to "+one.Target] = one
		}
	}
	return all, nil
}

// WaitCounts waits until all clients have counted something.
func (c *Clients) WaitCounts(ctx context.Context) (now map[string]Count, err error) {
	err = c.cluster.WaitFor(ctx, "the clients", func() (err error) { now, err = c.Counts(ctx); return err })
	return now, err
}

// enough are the answers of a target that show how it goes on.
const enough = 10

// Until waits until enough answers of each target that came one after the other please check, and returns the counts. Answers are
// "SERVER PORT CLIENT".
func (c *Clients) Until(t testing.TB, what string, check func(answers []string) error) map[string]Count {
	t.Helper()
	return c.UntilOf(t, "", what, check)
}

// UntilOf checks only the answers of targets of a network, which begins so.
func (c *Clients) UntilOf(t testing.TB, network, what string, check func(answers []string) error) (now map[string]Count) {
	t.Helper()
	base, err := c.Counts(t.Context())
	if err == nil {
		err = c.cluster.WaitFor(t.Context(), "clients to have "+what, func() (err error) {
			if now, err = c.Counts(t.Context()); err != nil {
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
func more(before, now Count) (answers []string) {
	for _, a := range slices.Sorted(maps.Keys(now.Answers)) {
		if now.Answers[a] > before.Answers[a] {
			answers = append(answers, a)
		}
	}
	return answers
}

// Anybody is a check for [Clients.Until] that any answers please.
func Anybody([]string) error { return nil }

// Lost holds that no connection has failed since a moment. Datagrams may be lost between the end of a server and the moment at
// which the cluster says so; the log tells how many were.
func (c *Clients) Lost(t testing.TB, before, now map[string]Count) {
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
