package tests

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/cilium/ebpf/btf"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/bpf"
)

// The documentation page defines the layout of a flow's entry: its table and the C type have the same fields at the same offsets.
func TestFlowEntry_MatchesDocumentation(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../Documentation/datapath.md")
	require.NoError(t, err)
	spec, err := bpf.Load(bpf.PodEgress)
	require.NoError(t, err)
	var entry *btf.Struct
	require.NoError(t, spec.Types.TypeByName("ct_entry", &entry))
	type field struct {
		offset, size int
		name         string
	}
	var documented, compiled []field
	section := regexp.MustCompile(`(?s)### The entry of a flow\n.*?\n\*\*`).Find(page)
	for _, row := range regexp.MustCompile("\n\\| `(\\w+)` \\| (\\d+) \\| (\\d+) \\|").FindAllSubmatch(section, -1) {
		offset, _ := strconv.Atoi(string(row[2]))
		size, _ := strconv.Atoi(string(row[3]))
		documented = append(documented, field{offset, size, string(row[1])})
	}
	for _, m := range entry.Members {
		size, err := btf.Sizeof(m.Type)
		require.NoError(t, err)
		compiled = append(compiled, field{int(m.Offset.Bytes()), size, m.Name})
	}
	require.Equal(t, compiled, documented)
}

// Programs keep bits of an entry that are reserved for later features. An evaluation clears the path of other programs.
func TestPrivilegedFlowEntry_ReservedBitsStay(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		open, back := opened(t, n, family)
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		n.passes(podB, back.tcp(t, "SA"), actRedirect)
		n.passes(podA, open.tcp(t, "A"), actRedirect)
		const flags, paths, packets = 0xffff0000, 0x0800, 0xffff << 48
		n.changeFlows("est", family, func(e *bpf.CtEntry) { e.Flags |= flags | paths; e.Packets |= packets })
		before := n.onlyFlow("est", family)
		n.passes(podB, back.tcp(t, "A"), actRedirect)
		n.passes(podA, open.tcp(t, "FA"), actRedirect)
		f := n.onlyFlow("est", family)
		if f.Flags&(flags|paths) != flags|paths || f.Packets>>48 != packets>>48 || bpf.CtPackets(&f) != bpf.CtPackets(&before)+2 {
			t.Errorf("flow %+v, before %+v", f, before)
		}
		n.facts(podB, func(*bpf.EndpointFacts) {})
		n.passes(podA, open.tcp(t, "A"), actRedirect)
		if f := n.onlyFlow("est", family); f.Flags&(flags|paths) != flags || f.Packets>>48 != packets>>48 {
			t.Errorf("after an evaluation: flow %+v", f)
		}
	})
}
