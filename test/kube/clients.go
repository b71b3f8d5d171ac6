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

// Count holds what the program talk counts for a target, from the first answer on.
type Count struct {
	Target                 string
	Asked                  int // including requests before the first answer
	Good, Failed, Reopened int
	Answers                map[string]int // by "SERVER PORT CLIENT"
	Errors                 []string       // the last few
}

// Clients are programs that send requests to targets continuously.
type Clients struct {
	cluster *Cluster
	name    string // prefix of the names of processes outside pods
	flags   []string
	output  map[string]func(context.Context) (string, error) // reads the output so far, by client
}

// NewClients returns Clients without a program. The name must be unique in the cluster. The flags are passed to "talk loop"; the pause between two requests
// to a target is 50 ms by default.
func (c *Cluster) NewClients(name string, flags ...string) *Clients {
	return &Clients{cluster: c, name: name, flags: flags, output: map[string]func(context.Context) (string, error){}}
}

// AddPod adds a client in a new pod with the name, labels and node of pod. The pod must have a node. AddPod does not wait for the pod.
func (c *Clients) AddPod(ctx context.Context, pod Pod, targets ...string) error {
	pod.Image, pod.Command = TalkImage, c.command("/bin/talk", targets)
	if err := c.cluster.CreatePod(ctx, pod); err != nil {
		return err
	}
	n, namespace := c.cluster.Node(pod.Node), orElse(pod.Namespace, c.cluster.Namespace)
	// The log file on the node's disk is readable during an outage of the API server.
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

// AddOutside adds a client outside all nodes. The client ends with the test.
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

// Counts returns the latest counts by "CLIENT to TARGET".
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
		if err := json.Unmarshal([]byte(lines[len(lines)-2]), &counts); err != nil { // the last line may be incomplete
			return nil, fmt.Errorf("the client %s says %w\n%s", who, err, lines[len(lines)-2])
		}
		for _, one := range counts {
			all[who+" to "+one.Target] = one
		}
	}
	return all, nil
}

// WaitCounts waits until all clients have reported counts.
func (c *Clients) WaitCounts(ctx context.Context) (now map[string]Count, err error) {
	err = c.cluster.WaitFor(ctx, "the clients", func() (err error) { now, err = c.Counts(ctx); return err })
	return now, err
}

// enough is the number of answers of a target that a check needs.
const enough = 10

// Until waits until check accepts the answers of each target during at least ten successive answers, and returns the counts. Answers are "SERVER PORT
// CLIENT".
func (c *Clients) Until(t testing.TB, what string, check func(answers []string) error) map[string]Count {
	t.Helper()
	return c.UntilOf(t, "", what, check)
}

// UntilOf is like Until but checks only the answers of targets whose URLs start with network.
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

// more returns the answers whose count has grown since before.
func more(before, now Count) (answers []string) {
	for _, a := range slices.Sorted(maps.Keys(now.Answers)) {
		if now.Answers[a] > before.Answers[a] {
			answers = append(answers, a)
		}
	}
	return answers
}

// AnyServer is a check for [Clients.Until] that accepts any answers.
func AnyServer([]string) error { return nil }

// Lost fails the test if a connection failed between two counts. Datagrams may be lost between the exit of a server and its removal from the Service; the log
// shows how many.
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
