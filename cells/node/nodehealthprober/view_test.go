package nodehealthprober

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// rowOf returns node i as described by its objects.
func rowOf(i int) *nodes.Node {
	return &nodes.Node{Name: nameOf(i), UID: fmt.Sprint("uid-", i), Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: addressOf(i)}},
		CIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)}}
}

// viewOf returns the view of an agent that knows the named nodes.
func viewOf(t *testing.T, self string, complete bool, names ...string) *view {
	t.Helper()
	v := newView(agentconfig.Agent{ClusterName: "blue", NodeName: self})
	changed := map[string]*nodes.Node{}
	for _, name := range names {
		changed[name] = &nodes.Node{Name: name}
	}
	v.update(changed, complete)
	return v
}

// cluster is a set of agents that probe each other, each with its own table of nodes.
type cluster struct {
	*fake
	agents   []*rig
	health   []*cell.SimpleHealth
	differed atomic.Int64 // number of replies with another digest than the requester's
}

// ownViews is the network of one agent: the other agents reply from their own views.
type ownViews struct{ *cluster }

func (a ownViews) Hello(ctx context.Context, to netip.AddrPort, requester string) (time.Duration, *digest, error) {
	latency, _, err := a.fake.Hello(ctx, to, requester)
	for i, r := range a.agents {
		if addressOf(i) == to.Addr() {
			request := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: helloPath}, Header: http.Header{requesterHeader: {url.PathEscape(requester)}}}
			_, text, _ := strings.Cut(responseTo(request, r.view), digestHeader+": ")
			text, _, _ = strings.Cut(text, "\r\n")
			theirs := parseDigest(text)
			if own := a.named(requester).view.with(nameOf(i)); theirs != nil && own != nil && *theirs != *own {
				a.differed.Add(1)
			}
			return latency, theirs, err
		}
	}
	return latency, nil, err
}

func (c *cluster) named(name string) *rig {
	return c.agents[slices.IndexFunc(c.agents, func(r *rig) bool { return r.agent.NodeName == name })]
}

// newCluster starts agents. Each of them knows all agents and a number of other nodes, which run Cilium.
func newCluster(t *testing.T, agents, others int) *cluster {
	t.Helper()
	c := &cluster{fake: newFake()}
	for i := range agents {
		r := newRig(t, ownViews{c}, 0)
		r.agent.NodeName = nameOf(i)
		r.view = newView(r.agent)
		c.agents = append(c.agents, r)
		for j := range agents + others {
			c.learn(t, i, rowOf(j))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, r := range c.agents {
		health, root := cell.NewSimpleHealth()
		c.health = append(c.health, root)
		running.Go(func() {
			if err := r.run(ctx, health); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { cancel(); running.Wait() })
	return c
}

// learn and forget change the nodes that one agent knows. The row of its own node comes from its devices and differs from the rows of other agents.
func (c *cluster) learn(t *testing.T, agent int, row *nodes.Node) {
	t.Helper()
	own := *row
	if own.Name == nameOf(agent) {
		own.Source = nodes.Local
		own.Addresses = append(slices.Clone(row.Addresses), nodes.Address{Type: nodes.CiliumInternalIP, Addr: netip.MustParseAddr("10.99.0.1")})
	}
	txn := c.agents[agent].db.WriteTxn(c.agents[agent].nodes)
	_, _, err := c.agents[agent].nodes.Insert(txn, &own)
	txn.Commit()
	require.NoError(t, err)
}

func (c *cluster) forget(t *testing.T, agent int, row *nodes.Node) {
	t.Helper()
	txn := c.agents[agent].db.WriteTxn(c.agents[agent].nodes)
	_, _, err := c.agents[agent].nodes.Delete(txn, row)
	txn.Commit()
	require.NoError(t, err)
}

// reported returns the differences that an agent reports, as node and suspect.
func (c *cluster) reported(agent int) (all []string) {
	for row := range c.agents[agent].views.All(c.agents[agent].db.ReadTxn()) {
		all = append(all, row.Node+" "+row.Suspect)
	}
	return all
}

func (c *cluster) level(agent int) (level cell.Level, text string) {
	h := c.health[agent]
	h.Lock()
	defer h.Unlock()
	return h.Level, fmt.Sprint(h.Status, " ", h.Error)
}

// round returns the time in which each agent probes every other one, and again after the timeout if they differ.
func (c *cluster) round() time.Duration {
	o := c.agents[0].options
	return o.interval(20) + viewTimeout + 4*calmStep + probeTimeout
}

func TestViews_AgentMissesNode_AllOthersReportIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, 3)
		time.Sleep(c.round())
		for i := range c.agents {
			if got := c.reported(i); len(got) > 0 {
				t.Fatalf("all know the same nodes, and agent %d reports %v", i, got)
			}
		}
		c.forget(t, 2, rowOf(5))
		time.Sleep(c.round())
		for i := range c.agents {
			want := []string{nameOf(2) + " " + nameOf(2)}
			if i == 2 {
				want = []string{nameOf(0) + " " + nameOf(2), nameOf(1) + " " + nameOf(2), nameOf(3) + " " + nameOf(2)}
			}
			if got := c.reported(i); !slices.Equal(got, want) {
				t.Errorf("agent %d reports %v, want %v", i, got, want)
			}
			if level, text := c.level(i); level != "Degraded" || !strings.Contains(text, "check the agent of "+nameOf(2)) {
				t.Errorf("the health of agent %d is %v: %s", i, level, text)
			}
		}
		c.learn(t, 2, rowOf(5))
		time.Sleep(c.round())
		for i := range c.agents {
			if got := c.reported(i); len(got) > 0 {
				t.Errorf("all know the same nodes again, and agent %d reports %v", i, got)
			}
			if level, text := c.level(i); level != "OK" {
				t.Errorf("the health of agent %d is %v: %s", i, level, text)
			}
		}
	})
}

// The number of nodes is equal, and one node differs.
func TestViews_AgentWithOldAddress_IsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 2)
		moved := rowOf(4)
		moved.Addresses = []nodes.Address{{Type: nodes.InternalIP, Addr: addressOf(77)}}
		c.learn(t, 0, moved)
		c.learn(t, 1, moved)
		time.Sleep(c.round())
		for i, want := range [][]string{{nameOf(2) + " " + nameOf(2)}, {nameOf(2) + " " + nameOf(2)}, {nameOf(0) + " " + nameOf(2), nameOf(1) + " " + nameOf(2)}} {
			if got := c.reported(i); !slices.Equal(got, want) {
				t.Errorf("agent %d reports %v, want %v", i, got, want)
			}
		}
		if _, text := c.level(0); !strings.Contains(text, "know 5 nodes each, which differ") {
			t.Errorf("the health says %s", text)
		}
	})
}

// One agent does not know the node of the requester: it has one node less, and the sums are equal.
func TestViews_TwoAgents_FewerNodesIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 0)
		c.forget(t, 1, rowOf(0))
		time.Sleep(c.round())
		if got, want := c.reported(0), []string{nameOf(1) + " " + nameOf(1)}; !slices.Equal(got, want) {
			t.Errorf("agent 0 reports %v, want %v", got, want)
		}
		// The node is removed from the cluster: no other agent remains.
		c.forget(t, 0, rowOf(1))
		time.Sleep(3 * calmStep)
		if got := c.reported(0); len(got) > 0 {
			t.Errorf("agent 0 reports %v of a node that is removed", got)
		}
	})
}

// Nodes join and leave all the time, and each agent learns of it with a different delay. Digests differ repeatedly, and no difference is reported.
func TestViews_NodesJoinAndLeave_NothingIsReported(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	synctest.Test(t, func(t *testing.T) {
		const agents = 5
		c := newCluster(t, agents, 5)
		for step := range 400 {
			row := rowOf(100 + step/2)
			for i := range agents {
				lag := time.Duration(random.Int64N(int64(8 * time.Second)))
				time.AfterFunc(lag, func() {
					if step%2 == 0 {
						c.learn(t, i, row)
					} else {
						c.forget(t, i, row)
					}
				})
			}
			time.Sleep(10 * time.Second)
			for i := range c.agents {
				if got := c.reported(i); len(got) > 0 {
					t.Fatalf("step %d: agent %d reports %v", step, i, got)
				}
			}
		}
		if c.differed.Load() == 0 {
			t.Error("no two agents ever differed: the test shows nothing")
		}
	})
}

// If the agents of all nodes differ, few are probed again soon, and the others in each interval, also where only a sample of them is probed otherwise.
func TestViews_AllAgentsDiffer_FewAreProbedSooner(t *testing.T) {
	t.Parallel()
	for _, sample := range []int{0, 16} {
		synctest.Test(t, func(t *testing.T) {
			const number = 300
			net := newFake()
			for i := range number {
				net.views[addressOf(i)] = &digest{nodes: 5, sum: uint64(i)}
			}
			r := start(t, net, number, func(o *options) { o.sample = sample })
			interval := r.options.interval(number)
			time.Sleep(2*interval + viewTimeout)
			if got := r.views.NumObjects(r.db.ReadTxn()); got != number-1 {
				t.Errorf("with a sample of %d, %d differences are reported, want those of all other nodes", sample, got)
			}
			before := net.total().hello
			time.Sleep(interval)
			most := number*11/10 + maxFollowed*int(interval/viewTimeout+1)
			if asked := net.total().hello - before; asked > most || asked < number+maxFollowed {
				t.Errorf("with a sample of %d, in an interval %d requests by HTTP, want at most %d and more than one a node", sample, asked, most)
			}
		})
	}
}

// An agent restarts its loop: reported differences stay until a reply agrees.
func TestViews_RowsOutliveTheLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		net := newFake()
		r := newRig(t, net, 2)
		net.views[addressOf(1)] = &digest{nodes: 1}
		run := func() {
			ctx, cancel := context.WithTimeout(t.Context(), r.options.interval(2)+2*viewTimeout)
			defer cancel()
			health, _ := cell.NewSimpleHealth()
			if err := r.run(ctx, health); err != nil {
				t.Error(err)
			}
		}
		run()
		if got := r.views.NumObjects(r.db.ReadTxn()); got != 1 {
			t.Fatalf("%d differences are reported, want 1", got)
		}
		net.views[addressOf(1)] = &digest{nodes: 2}
		run()
		if got := r.views.NumObjects(r.db.ReadTxn()); got != 0 {
			t.Errorf("%d differences are reported after an answer that agrees", got)
		}
	})
}

func TestView_DigestCoversKnownNodes(t *testing.T) {
	t.Parallel()
	one, two, three := rowOf(1), rowOf(2), rowOf(3)
	v := newView(agentconfig.Agent{ClusterName: "blue", NodeName: nameOf(1)})
	set := func(complete bool, rows ...*nodes.Node) *digest {
		changed := map[string]*nodes.Node{nameOf(1): nil, nameOf(2): nil, nameOf(3): nil}
		for _, row := range rows {
			changed[row.Name] = row
		}
		v.update(changed, complete)
		return v.with(nameOf(2))
	}
	if d := set(false, one, two, three); d != nil {
		t.Errorf("the digest of a table that is not complete is %v", d)
	}
	before := *set(true, one, two, three)
	if before.nodes != 3 || before.sum != hashOf("blue", three) {
		t.Errorf("the digest is %v, want three nodes and the hash of the third", before)
	}
	if d := set(true, three, two, one); *d != before {
		t.Errorf("in another order the digest is %v, want %v", d, before)
	}
	if d := set(true, one, two); *d != (digest{nodes: 2}) {
		t.Errorf("without the third node the digest is %v", d)
	}
	copied := *three
	if d := set(true, one, two, &copied); *d != before {
		t.Errorf("with an equal row of the third node the digest is %v, want %v", d, before)
	}
	if d := v.with("stranger"); d.sum != hashOf("blue", two)^hashOf("blue", three) {
		t.Errorf("for an unknown node the digest is %v, want that of all others", d)
	}
}

func TestHashOf_RelevantFields(t *testing.T) {
	t.Parallel()
	base := rowOf(1)
	base.Addresses = append(base.Addresses, nodes.Address{Type: nodes.HealthIP, Addr: addressOf(9)})
	want := hashOf("blue", base)
	turned := *base
	turned.Addresses = []nodes.Address{base.Addresses[1], base.Addresses[0]}
	turned.Source, turned.FromNode, turned.Refused = nodes.CiliumNode, 1, []nodes.Refusal{{Claim: "x"}}
	turned.CIDRs, turned.Former = append(slices.Clone(base.CIDRs), netip.MustParsePrefix("10.99.0.0/24")), 1
	if got := hashOf("blue", &turned); got != want {
		t.Errorf("order, source, refusals and former ranges change the hash")
	}
	seen := map[uint64]string{want: "nothing"}
	for name, change := range map[string]func(*nodes.Node){
		"name": func(n *nodes.Node) { n.Name += "x" },
		"uid":  func(n *nodes.Node) { n.UID += "x" },
		"type": func(n *nodes.Node) {
			n.Addresses = []nodes.Address{{Type: nodes.ExternalIP, Addr: addressOf(1)}, n.Addresses[1]}
		},
		"address": func(n *nodes.Node) { n.Addresses = n.Addresses[:1] },
		"range":   func(n *nodes.Node) { n.CIDRs = nil },
	} {
		other := *base
		change(&other)
		got := hashOf("blue", &other)
		if same, found := seen[got]; found {
			t.Errorf("a change of %s has the hash of a change of %s", name, same)
		}
		seen[got] = name
	}
	if hashOf("green", base) == want {
		t.Error("the name of the cluster does not count")
	}
}

func FuzzParseDigest(f *testing.F) {
	for _, text := range []string{"2 5 00000000000000ff", "2 5000 ffffffffffffffff", "", "1 5 ff", "2 -1 ff", "2 99999999999 0", "2 5", "2 5 g"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d := parseDigest(text)
		if d == nil {
			return
		}
		if again := parseDigest(d.text()); d.nodes < 0 || again == nil || *again != *d {
			t.Errorf("%q is %v, which comes back as %v", text, d, again)
		}
	})
}

// The header is in replies to agents that name their node, and only in those.
func TestResponseTo_HeaderOnlyForAgents(t *testing.T) {
	t.Parallel()
	v := viewOf(t, "one", true, "one", "two", "a b\r\n")
	for name, test := range map[string]struct {
		view *view
		path string
		from []string
		want *digest
	}{
		"an agent":          {v, helloPath, []string{"two"}, v.with("two")},
		"an escaped name":   {v, helloPath, []string{url.PathEscape("a b\r\n")}, v.with("a b\r\n")},
		"an unknown node":   {v, helloPath, []string{"three"}, v.with("three")},
		"Cilium":            {v, helloPath, nil, nil},
		"a bad escape":      {v, helloPath, []string{"%zz"}, nil},
		"another path":      {v, "/", []string{"two"}, nil},
		"not all are known": {viewOf(t, "one", false, "one", "two"), helloPath, []string{"two"}, nil},
	} {
		answer, err := http.ReadResponse(bufio.NewReader(strings.NewReader(responseTo(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: test.path},
			Header: http.Header{requesterHeader: test.from}}, test.view))), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		text, has := answer.Header[digestHeader]
		if has != (test.want != nil) || has && *parseDigest(text[0]) != *test.want {
			t.Errorf("%s: the header is %q, want %v", name, text, test.want)
		}
	}
}
