package policycompiler

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/policy"
)

// TestKey_NumbersMatchDatapath compares kinds, classes and blocks of ports with the layouts of the programs.
func TestKey_NumbersMatchDatapath(t *testing.T) {
	t.Parallel()
	for kind, theirs := range map[Kind]bpf.PolicyKind{Any: bpf.PolicyAny, Identity: bpf.PolicyIdentity, CIDR: bpf.PolicyCIDR,
		CIDROutside: bpf.PolicyCIDROutside, Class: bpf.PolicyClass} {
		require.EqualValues(t, theirs, kind)
		for _, c := range []struct {
			key  Key
			want uint32
		}{
			{Key{Kind: kind}, bpf.ShapeEntry(theirs, bpf.PolicyAll)},
			{Key{Kind: kind, Protocol: 6}, bpf.ShapeEntry(theirs, bpf.PolicyProtocol)},
			{Key{Kind: kind, Protocol: 6, Port: 80, PortBits: 16}, bpf.ShapeEntry(theirs, bpf.PolicyPort)},
			{Key{Kind: kind, Protocol: 6, Port: 80, PortBits: 12}, bpf.ShapeRange(theirs)},
			{Key{Kind: kind, Protocol: 6, PortBits: 1}, bpf.ShapeRange(theirs)},
		} {
			of := &Compiled{}
			of.count(newGroup(peer{kind, 0}, []entry{{protocol: c.key.Protocol, port: c.key.Port, bits: c.key.PortBits}}), 1)
			require.Equal(t, c.want, of.Shape(), "%+v", c.key)
		}
	}
	require.Equal(t, []uint32{bpf.ShapeLocalhost, bpf.ShapeNested, bpf.ShapeStops, bpf.ShapeClasses, uint32(bpf.PolicyStop)},
		[]uint32{ShapeLocalhost, ShapeNested, ShapeStops, ShapeClasses, uint32(Stop)})
	random := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		r := run{uint16(random.Uint32()), uint16(random.Uint32())}
		if r.low > r.high {
			r.low, r.high = r.high, r.low
		}
		checkBlocks(t, r)
	}
}

// checkBlocks checks that the blocks of a run are prefixes that cover exactly the run in order, and that no two of them are halves of one larger block.
func checkBlocks(t *testing.T, r run) {
	t.Helper()
	next := int(r.low)
	before := block{bits: 17}
	for b := range r.blocks {
		size := 1 << (16 - b.bits)
		require.Equal(t, []int{next, next + size - 1, 0}, []int{int(b.low), int(b.high), int(b.low) % size}, "%v: block %v", r, b)
		require.False(t, b.bits == before.bits && int(before.low)%(2*size) == 0, "%v: %v and %v are one block", r, before, b)
		next, before = int(b.high)+1, b
	}
	require.Equal(t, int(r.high)+1, next, "%v", r)
}

// TestEntriesOf_KeepsEveryVerdict: for random rules about one peer and about every peer, the entries of both give each port the verdict of the rules, and every
// entry of the peer is needed.
func TestEntriesOf_KeepsEveryVerdict(t *testing.T) {
	t.Parallel()
	for n := *seed; n < *seed+*worlds/10; n++ {
		random := rand.New(rand.NewPCG(n, 5))
		cookies := &ruleCookies{}
		for i := range uint32(12) {
			cookies.of = append(cookies.of, i+cookieMin)
		}
		rules := func(first, many int) (effects []effect) {
			for i := range many {
				s := effect{rule: first + i, deny: random.IntN(3) == 0, all: random.IntN(12) == 0}
				for range random.IntN(4) {
					s.ports = append(s.ports, span{protocol: []uint8{6, 17}[random.IntN(2)], run: randomRun(random)})
				}
				effects = append(effects, s)
			}
			return effects
		}
		anyPeer, one := rules(0, random.IntN(4)), rules(6, random.IntN(6))
		w := wide{}.with(anyPeer)
		c := compiledOf(map[peer][]entry{{Any, 0}: entriesOf(anyPeer, wide{}, cookies), {Identity, 300}: entriesOf(one, w, cookies)})
		check := func(c *Compiled) (wrong int) {
			for _, protocol := range []uint8{6, 17, 132} {
				for port := range 1 << 16 {
					if port > 700 && port < 64900 && port%64 != 0 {
						continue // no smaller block begins at such a port
					}
					want := naive(append(slices.Clone(anyPeer), one...), protocol, uint16(port))
					got := c.Lookup(Peer{Identity: 300}, protocol, uint16(port))
					if got.Allowed != (want == "allow") || (want == "deny") != (got.Entry != nil && got.Entry.Deny) {
						wrong++
					}
				}
			}
			return wrong
		}
		require.Zero(t, check(c), "seed %d: everybody %+v, one %+v:\n%s", n, anyPeer, one, render(c))
		for _, g := range c.groups {
			if g.kind == Any {
				continue // other peers need these entries
			}
			for i := range g.entries {
				less := compiledOf(map[peer][]entry{{Any, 0}: entriesOf(anyPeer, wide{}, cookies),
					g.peer: slices.Delete(slices.Clone(g.entries), i, i+1)})
				require.NotZero(t, check(less), "seed %d: %+v is not needed: everybody %+v, one %+v:\n%s", n, g.entries[i], anyPeer, one, render(c))
			}
		}
	}
}

// randomRun returns a run whose ends are often close to the ends of other runs.
func randomRun(random *rand.Rand) run {
	point := func() uint16 {
		if random.IntN(8) == 0 {
			return math.MaxUint16 - uint16(random.IntN(500))
		}
		return uint16(random.IntN(300))
	}
	if random.IntN(10) == 0 {
		return run{0, math.MaxUint16}
	}
	a, b := point(), point()
	if random.IntN(3) == 0 {
		b = a
	}
	return run{min(a, b), max(a, b)}
}

// naive returns the verdict of rules for a port: "deny", "allow" or "".
func naive(effects []effect, protocol uint8, port uint16) (verdict string) {
	for _, s := range effects {
		hit := s.all || slices.ContainsFunc(s.ports, func(p span) bool { return p.protocol == protocol && p.low <= port && port <= p.high })
		switch {
		case hit && s.deny:
			return "deny"
		case hit:
			verdict = "allow"
		}
	}
	return verdict
}

func compiledOf(groups map[peer][]entry) *Compiled {
	c := &Compiled{isolated: true}
	for p, entries := range groups {
		c.put(p, entries)
	}
	return c
}

func TestNumbersAndNames_SkipsInvalidPorts(t *testing.T) {
	t.Parallel()
	numbers, named := numbersAndNames([]policy.Port{
		{Protocol: 6, Low: 90, High: 80}, {Protocol: 0, All: true}, {Protocol: 17, All: true, Name: "dns"}, {Protocol: 6, Name: "web"},
	})
	require.Equal(t, []span{{protocol: 17, run: run{0, 65535}}}, numbers)
	require.Equal(t, []namedRef{{"web", 6}}, named)
}
