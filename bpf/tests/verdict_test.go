package tests

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
)

// newVerdictNode is a node that reports verdicts.
func newVerdictNode(t *testing.T) *node { return newNodeWith(t, nil, nil) }

// reported reads all events from the ring buffer.
func (n *node) reported() (verdicts []events.Verdict, drops int) {
	n.t.Helper()
	for {
		n.events.SetDeadline(time.Now().Add(-time.Second))
		record, err := n.events.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return verdicts, drops
		}
		if err != nil {
			n.t.Fatal(err)
		}
		event, err := events.Decode(record.RawSample)
		if err != nil {
			n.t.Fatal(err)
		}
		switch e := event.(type) {
		case *events.Verdict:
			verdicts = append(verdicts, *e)
		case *events.Drop:
			drops++
		default:
			n.t.Fatalf("event %+v", event)
		}
	}
}

// wantVerdict checks for exactly one verdict, and compares only the endpoint of its header.
func (n *node) wantVerdict(packet []byte, want events.Verdict) {
	n.t.Helper()
	got, _ := n.reported()
	if len(got) != 1 {
		n.t.Fatalf("%d verdicts: %+v", len(got), got)
	}
	v := got[0]
	if string(v.Packet) != string(packet) || int(v.Length) != len(packet) {
		n.t.Errorf("captured %x of %d bytes", v.Packet, v.Length)
	}
	v.Header = events.Header{Endpoint: v.Endpoint}
	if v.Endpoint != want.Endpoint || v.RemoteIdentity != want.RemoteIdentity || v.Code != want.Code || v.DstPort != want.DstPort ||
		v.Protocol != want.Protocol || v.Egress != want.Egress || v.IPv6 != want.IPv6 || v.Match != want.Match || v.Audited != want.Audited {
		n.t.Errorf("verdict %+v, want %+v", v, want)
	}
}

// Each class of keys reports its specificity.
func TestPrivilegedVerdict_Match(t *testing.T) {
	t.Parallel()
	n := newVerdictNode(t)
	n.name(prefixOf(outside[4], 24), identityCIDR+2)
	n.name(prefixOf(outside[6], 24), identityCIDR+2)
	of := func(whole, protocol, port events.Match) []events.Match {
		return []events.Match{whole, protocol, port, port}
	}
	matches := append(of(4, 6, 3), append(of(1, 5, 2), append(of(1, 5, 2), of(1, 5, 2)...)...)...)
	for i, r := range classes() {
		for _, family := range families {
			in := outsideTo(podA, outside[family], 5000+uint16(i), 80).tcp(t, "S")
			send := func() { n.runSkb(bpf.PodIngress, skBuff{Ifindex: ifPodA, IngressIfindex: ifUplink}, in) }
			want := events.Verdict{Header: events.Header{Endpoint: podA.id}, RemoteIdentity: 2, DstPort: 80, Protocol: protoTCP,
				IPv6: family == 6, Match: matches[i]}
			n.update(bpf.MapVerdictTokens, uint32(podA.id), bpf.TokenBucket{Tokens: 32, Refilled: 1 << 62})
			n.refill(podA.id)
			n.ingress(podA, r)
			send()
			n.wantVerdict(in, want)
			clearMaps(t, n, family)
			n.ingress(podA, r.denying())
			want.Code = -int32(events.PolicyDenyRule)
			send()
			n.wantVerdict(in, want)
		}
	}
	n.ingress(podA)
	in := outsideTo(podA, outside[4], 6000, 80).tcp(t, "S")
	n.runSkb(bpf.PodIngress, skBuff{Ifindex: ifPodA, IngressIfindex: ifUplink}, in)
	n.wantVerdict(in, events.Verdict{Header: events.Header{Endpoint: podA.id}, RemoteIdentity: 2, Code: -133, DstPort: 80, Protocol: protoTCP})
}

// Between pods of one node each end has a separate verdict. Later packets have none, nor has a flow that stays allowed.
func TestPrivilegedVerdict_BothEnds(t *testing.T) {
	t.Parallel()
	for _, family := range families {
		n := newVerdictNode(t)
		open := sent(podA, podA.addr(family), podB.addr(family)).ports(5000, 80)
		n.run(bpf.PodEgress, ifPodA, open.tcp(t, "S"))
		got, drops := n.reported()
		if len(got) != 2 || drops != 0 || got[0].Endpoint != podA.id || !got[0].Egress || got[1].Endpoint != podB.id || got[1].Egress ||
			got[0].RemoteIdentity != podB.facts().Identity || got[1].RemoteIdentity != podA.facts().Identity || got[0].Match != 4 {
			t.Errorf("%d drops, verdicts %+v", drops, got)
		}
		n.run(bpf.PodEgress, ifPodB, open.back(podB).tcp(t, "SA"))
		n.facts(podA, func(*bpf.EndpointFacts) {})
		n.run(bpf.PodEgress, ifPodA, open.tcp(t, "A"))
		if got, drops := n.reported(); len(got)+drops != 0 {
			t.Errorf("%d drops, verdicts %+v", drops, got)
		}
		// The side that the change denies gets a verdict.
		n.facts(podB, func(f *bpf.EndpointFacts) { f.PolicyIngress = bpf.PolicyDropAll })
		n.run(bpf.PodEgress, ifPodA, open.tcp(t, "A"))
		if got, drops := n.reported(); len(got) != 1 || drops != 1 || got[0].Endpoint != podB.id || got[0].Code != -133 {
			t.Errorf("%d drops, verdicts %+v", drops, got)
		}
	}
}

// The type of ICMP takes the place of the port.
func TestPrivilegedVerdict_ICMP(t *testing.T) {
	t.Parallel()
	for family, kind := range map[int]uint16{4: 8, 6: 128} {
		n := newVerdictNode(t)
		in := received(podA, outside[family], podA.addr(family)).echo(t, false, 9)
		n.runSkb(bpf.PodIngress, skBuff{Ifindex: ifPodA, IngressIfindex: ifUplink}, in)
		n.wantVerdict(in, events.Verdict{Header: events.Header{Endpoint: podA.id}, RemoteIdentity: 2, DstPort: kind,
			Protocol: protoICMP[family], IPv6: family == 6, Match: 4})
	}
}

// A policy in audit mode denies no packet, reports the packets that it would deny, and marks the flow. It does not report packets that other policies deny.
func TestPrivilegedVerdict_Audit(t *testing.T) {
	t.Parallel()
	for _, egress := range []bool{false, true} {
		for _, family := range families {
			n := newVerdictNode(t)
			packet := outsideTo(podA, outside[family], 5000, 80)
			run := func(f flow) (outcome, []byte) {
				if egress {
					f = sent(podA, f.dst, f.src).ports(f.sport, f.dport)
					return n.run(bpf.PodEgress, ifPodA, f.tcp(t, "S")), f.tcp(t, "S")
				}
				return n.runSkb(bpf.PodIngress, skBuff{Ifindex: ifPodA, IngressIfindex: ifUplink}, f.tcp(t, "S")), f.tcp(t, "S")
			}
			audit := n.policy(policyID+1, rule{level: bpf.PolicyPort, protocol: protoTCP, first: 81},
				rule{kind: bpf.PolicyIdentity, identity: 2, level: bpf.PolicyPort, protocol: protoTCP, first: 82, deny: true})
			n.facts(podA, func(f *bpf.EndpointFacts) {
				if egress {
					f.AuditEgress, f.AuditShapeEgress = policyID+1, audit
				} else {
					f.AuditIngress, f.AuditShapeIngress = policyID+1, audit
				}
			})
			want := events.Verdict{Header: events.Header{Endpoint: podA.id}, RemoteIdentity: 2, DstPort: 80, Protocol: protoTCP,
				IPv6: family == 6, Egress: egress, Audited: true}
			got, in := run(packet)
			n.wantVerdict(in, want)
			if got.action != actOK || n.onlyFlow("new", family).Flags&bpf.CtAudited == 0 {
				t.Errorf("action %d, flow %+v", got.action, n.onlyFlow("new", family))
			}
			clearMaps(t, n, family)
			want.DstPort, want.Match = 82, 2
			_, in = run(packet.ports(5000, 82))
			n.wantVerdict(in, want)
			clearMaps(t, n, family)

			want.DstPort, want.Match, want.Audited = 81, 4, false
			got, in = run(packet.ports(5000, 81))
			n.wantVerdict(in, want)
			if got.action != actOK || n.onlyFlow("new", family).Flags&bpf.CtAudited != 0 {
				t.Errorf("action %d, flow %+v", got.action, n.onlyFlow("new", family))
			}

			n.facts(podA, func(f *bpf.EndpointFacts) { f.PolicyIngress, f.PolicyEgress = bpf.PolicyDropAll, bpf.PolicyDropAll })
			want.DstPort, want.Match, want.Code = 83, 0, -133
			_, in = run(packet.ports(5000, 83))
			n.wantVerdict(in, want)
		}
	}
}

// The number of flows that an endpoint opens does not affect the reports of its drops.
func TestPrivilegedVerdict_OwnTokens(t *testing.T) {
	t.Parallel()
	n := newVerdictNode(t)
	var bucket bpf.TokenBucket
	flows := uint16(0)
	for ; bucket.Suppressed == 0 && flows < 2000; flows++ { // the slower the test, the more flows it opens until the bucket is empty
		n.run(bpf.PodEgress, ifPodA, sent(podA, podA.ipv4, outside[4]).ports(1000+flows, 80).bytes(t))
		check(t, n.maps[bpf.MapVerdictTokens].Lookup(uint32(podA.id), &bucket))
	}
	verdicts, _ := n.reported()
	if bucket.Suppressed != 1 || len(verdicts) != int(flows)-1 {
		t.Errorf("%d verdicts of %d flows, %d are suppressed", len(verdicts), flows, bucket.Suppressed)
	}
	n.run(bpf.PodEgress, ifPodA, sent(podA, podB.ipv4, outside[4]).bytes(t))
	if _, drops := n.reported(); drops != 1 {
		t.Errorf("%d drops were reported, want 1", drops)
	}
}
