package policymaps

import (
	"flag"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policytest"
	"github.com/waggle-net/waggle/pkg/testnet"
)

var (
	programSeed   = flag.Uint64("policy.seed", 1, "the first seed of the test that asks the loaded programs")
	programWorlds = flag.Uint64("policy.worlds", 1000, "in how many random worlds it asks 200 questions each")
)

// TestPrivilegedPrograms_VerdictsMatchReference: in random clusters with random policies, the reference evaluator, the compiled entries, and the programs of the
// datapath with these entries in real maps have the same verdict on every first packet.
func TestPrivilegedPrograms_VerdictsMatchReference(t *testing.T) {
	testnet.RequirePrivileges(t)
	const questions = 200
	test := newProgramTest(t)
	var allowed, denied, local int
	for n := *programSeed; n < *programSeed+*programWorlds; n++ {
		w := test.enter(policytest.New(n, policytest.Small), features{nested: n%2 == 0, classes: n%4 < 2})
		for i := range uint64(questions) {
			q := w.Question(i)
			if !sendable(&q) || w.isEstablished(&q) {
				continue
			}
			wrong, yes, both := test.disagrees(w, &q)
			if wrong != "" {
				t.Fatalf("-policy.seed=%d, question %d: %s\n%s", n, i, wrong, test.shrunk(w, &q))
			}
			if yes {
				allowed++
			} else {
				denied++
			}
			if both {
				local++
			}
		}
		w.leave()
	}
	t.Logf("%d allowed, %d denied, %d of them between two pods of one node", allowed, denied, local)
	if all := allowed + denied; min(allowed, denied) < all/10 || local < all/20 {
		t.Errorf("the questions are not good enough")
	}
}

// sendable reports whether a packet can be the first packet of a connection. ICMP replies and errors cannot, nor can ICMP of the other family.
func sendable(q *policy.Question) bool {
	switch q.Protocol {
	case policy.ProtocolICMP:
		return q.Peer.Addr.Is4() && q.Port == 8
	case policy.ProtocolICMPv6:
		return q.Peer.Addr.Is6() && q.Port == 128
	}
	return true
}

// isEstablished reports whether a packet belongs to a connection of a previous question. All packets without ports between two addresses are one connection.
func (w *inPrograms) isEstablished(q *policy.Question) bool {
	if q.Protocol == policy.ProtocolTCP || q.Protocol == policy.ProtocolUDP || q.Protocol == policy.ProtocolSCTP {
		return false
	}
	subject := w.pod(q.Subject.Addr)
	if subject < 0 {
		return true
	}
	pair := [2]netip.Addr{sameFamily(&w.Pods[subject], q.Peer.Addr), q.Peer.Addr}
	if pair[1].Less(pair[0]) {
		pair[0], pair[1] = pair[1], pair[0]
	}
	asked := w.pairs[pair]
	w.pairs[pair] = true
	return asked
}

// pod returns the index of the pod with an address; -1 if no pod has it.
func (w *inPrograms) pod(addr netip.Addr) int {
	for i := range w.Pods {
		if w.Pods[i].Addrs[0] == addr || w.Pods[i].Addrs[1] == addr {
			return i
		}
	}
	return -1
}

// disagrees returns how the verdicts of the reference, the compiled entries and the programs differ, "" if they are equal. In every other question about the
// egress to a pod, that pod is on the same node, where the policies of both pods apply.
func (test *programTest) disagrees(w *inPrograms, q *policy.Question) (wrong string, allowed, local bool) {
	test.t.Helper()
	subject := w.pod(q.Subject.Addr)
	want := policy.Evaluate(w.policies, w.Options, *q).Verdict == policy.Allow
	ingress, egress := w.resolver.Compile(idOf(subject))
	decision := ingress
	if q.Direction == policy.Egress {
		decision = egress
	}
	peer := w.resolver.Peer(q.Peer.Identity, q.Peer.Addr)
	if got := decision.Enforced.Lookup(peer, q.Protocol, q.Port).Allowed; got != want {
		return fmt.Sprintf("%+v: the reference allows: %t; the compiled entries: %t", *q, want, got), want, false
	}
	other := w.pod(q.Peer.Addr)
	if local = q.Direction == policy.Egress && other >= 0 && other != subject && test.port%2 == 0; local {
		reverse := *q
		reverse.Direction = policy.Ingress
		reverse.Subject = w.Pods[other].Subject()
		reverse.Peer = policy.Party{Identity: q.Subject.Identity, Labels: w.Pods[subject].IdentityLabels, Addr: sameFamily(&w.Pods[subject], q.Peer.Addr),
			Ports: q.Subject.Ports}
		want = want && policy.Evaluate(w.policies, w.Options, reverse).Verdict == policy.Allow
		test.put(bpf.MapEndpoints, bpf.NewAddrKey(q.Peer.Addr), bpf.EndpointRef{Id: uint32(idOf(other))})
		defer test.remove(bpf.MapEndpoints, bpf.NewAddrKey(q.Peer.Addr))
	}
	if got := test.send(w, subject, q); got != want {
		return fmt.Sprintf("%+v, local: %t: the reference allows: %t; the programs: %t", *q, local, want, got), want, local
	}
	return "", want, local
}

func sameFamily(p *policytest.Pod, addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return p.Addrs[0]
	}
	return p.Addrs[1]
}

// send reports whether the programs forward the first packet of a connection.
func (test *programTest) send(w *inPrograms, subject int, q *policy.Question) bool {
	test.t.Helper()
	if test.port++; test.port < 1024 {
		test.port = 1024
	}
	podMAC, hostMAC := macs(subject)
	own := sameFamily(&w.Pods[subject], q.Peer.Addr)
	program, in := bpf.PodEgress, skb{Ifindex: firstLink + uint32(subject)}
	frame := packet{from: podMAC, to: hostMAC, source: own, destination: q.Peer.Addr, protocol: q.Protocol, sourcePort: test.port, port: q.Port}
	if q.Direction == policy.Ingress {
		program = bpf.PodIngress
		frame.from, frame.to, frame.source, frame.destination = hostMAC, podMAC, q.Peer.Addr, own
		if q.Peer.Identity != identity.Host {
			in.IngressIfindex = uplink
		}
	}
	const shot = 2
	action, err := test.programs[w.Options.CIDRMatchesNodes][program].Run(&ebpf.RunOptions{Data: frame.bytes(), Context: in})
	if err != nil {
		test.t.Fatalf("run %s: %v", program, err)
	}
	return action != shot
}

// shrunk returns the smallest part of a world in which the verdicts still differ.
func (test *programTest) shrunk(w *inPrograms, q *policy.Question) string {
	test.t.Helper()
	w.leave()
	fails := func(smaller *policytest.World) bool {
		s := test.enter(smaller, w.with)
		defer s.leave()
		if s.pod(q.Subject.Addr) < 0 {
			return false
		}
		for range 2 { // once with the peer on this node
			if wrong, _, _ := test.disagrees(s, q); wrong != "" {
				return true
			}
		}
		return false
	}
	return policytest.Shrink(w.World, fails).String()
}
