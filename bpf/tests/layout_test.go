package tests

import (
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/waggle-net/waggle/bpf"
)

// goName is how a field of C is called in Go.
func goName(c string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(c, "_") {
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return b.String()
}

// checkLayout compares a Go struct with the C struct of the same name: the same fields in the same order, each with the same name, offset and size, and
// nothing between or after them.
func checkLayout(t *testing.T, types *btf.Spec, name string, value any) {
	t.Helper()
	var c *btf.Struct
	if err := types.TypeByName(name, &c); err != nil {
		t.Errorf("struct %s: %v", name, err)
		return
	}
	g := reflect.TypeOf(value)
	if uintptr(c.Size) != g.Size() {
		t.Errorf("struct %s: %d bytes in C, %d in Go", name, c.Size, g.Size())
	}
	fields := reflect.VisibleFields(g)
	if fields[0].Name == "_" && fields[0].Type.Size() == 0 {
		fields = fields[1:] // structs.HostLayout
	}
	if len(fields) != len(c.Members) {
		t.Errorf("struct %s: %d fields in C, %d in Go", name, len(c.Members), len(fields))
		return
	}
	for i, m := range c.Members {
		size, err := btf.Sizeof(m.Type)
		if err != nil {
			t.Errorf("struct %s, field %s: %v", name, m.Name, err)
			continue
		}
		f := fields[i]
		if f.Name != goName(m.Name) || f.Offset != uintptr(m.Offset.Bytes()) || f.Type.Size() != uintptr(size) {
			t.Errorf("struct %s: %s at %d of %d bytes in C, %s at %d of %d bytes in Go",
				name, m.Name, m.Offset.Bytes(), size, f.Name, f.Offset, f.Type.Size())
		}
	}
}

func TestLayout_GoEqualsC(t *testing.T) {
	t.Parallel()
	shared := map[string]any{
		"endpoint_facts": bpf.EndpointFacts{}, "endpoint_ref": bpf.EndpointRef{}, "addr_key": bpf.AddrKey{}, "lpm_key": bpf.LpmKey{},
		"ipcache_entry": bpf.IpcacheEntry{}, "metrics_value": bpf.MetricsValue{}, "token_bucket": bpf.TokenBucket{}, "drop_event": bpf.DropEvent{},
		"datapath_state": bpf.DatapathState{}, "policy_key": bpf.PolicyKey{}, "policy_entry": bpf.PolicyEntry{}, "policy_range_key": bpf.PolicyRangeKey{},
		"ct_key4": bpf.CtKey4{}, "ct_key6": bpf.CtKey6{}, "ct_entry": bpf.CtEntry{}, "frag_key": bpf.FragKey{}, "frag_entry": bpf.FragEntry{},
		"netdev": bpf.Netdev{}, "node": bpf.Node{}, "node_addr": bpf.NodeAddr{},
	}
	seen := map[string]bool{}
	for _, program := range bpf.Programs() {
		spec, err := bpf.Load(program)
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range shared {
			// A program contains the types of the maps that it uses.
			var c *btf.Struct
			if err := spec.Types.TypeByName(name, &c); err == nil {
				checkLayout(t, spec.Types, name, value)
				seen[name] = true
			}
		}
	}
	for name := range shared {
		if !seen[name] {
			t.Errorf("struct %s: no program has it", name)
		}
	}
}

// Keys and values of the maps have the sizes of their types.
func TestLayout_MapsHoldTheTypes(t *testing.T) {
	t.Parallel()
	specs, err := bpf.MapSpecs()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ key, value any }{
		bpf.MapEndpointFacts: {uint32(0), bpf.EndpointFacts{}}, bpf.MapLinks: {uint32(0), uint32(0)}, bpf.MapEndpoints: {bpf.AddrKey{}, bpf.EndpointRef{}},
		bpf.MapIpcache: {bpf.AddrKey{}, bpf.IpcacheEntry{}}, bpf.MapIpcachePrefixes: {bpf.LpmKey{}, bpf.IpcacheEntry{}},
		bpf.MapMetrics: {uint32(0), bpf.MetricsValue{}}, bpf.MapEventsLost: {uint32(0), uint64(0)}, bpf.MapDropTokens: {uint32(0), bpf.TokenBucket{}},
		bpf.MapDatapath: {uint32(0), bpf.DatapathState{}}, bpf.MapPolicy: {bpf.PolicyKey{}, bpf.PolicyEntry{}},
		bpf.MapPolicyRanges: {bpf.PolicyRangeKey{}, bpf.PolicyEntry{}}, bpf.MapCIDRs: {bpf.LpmKey{}, bpf.CIDR{}}, bpf.MapEpochs: {uint32(0), uint32(0)}, bpf.MapEpochShards: {uint32(0), uint32(0)},
		bpf.MapCtEst4: {bpf.CtKey4{}, bpf.CtEntry{}}, bpf.MapCtEst6: {bpf.CtKey6{}, bpf.CtEntry{}}, bpf.MapCtNew4: {bpf.CtKey4{}, bpf.CtEntry{}},
		bpf.MapNodes: {uint32(0), bpf.Node{}}, bpf.MapNodeAddrs: {bpf.AddrKey{}, bpf.NodeAddr{}}, bpf.MapCtNew6: {bpf.CtKey6{}, bpf.CtEntry{}}, bpf.MapCtFlows: {uint32(0), uint32(0)}, bpf.MapNatFlows: {uint32(0), bpf.NatCount{}}, bpf.MapNatTotals: {uint32(0), bpf.NatCount{}}, bpf.MapFrags: {bpf.FragKey{}, bpf.FragEntry{}}, bpf.MapFragsBurst: {bpf.FragKey{}, bpf.FragEntry{}},
	} {
		m := specs[name]
		if uintptr(m.KeySize) != reflect.TypeOf(c.key).Size() || uintptr(m.ValueSize) != reflect.TypeOf(c.value).Size() {
			t.Errorf("map %s: key of %d and value of %d bytes, Go has %d and %d", name, m.KeySize, m.ValueSize,
				reflect.TypeOf(c.key).Size(), reflect.TypeOf(c.value).Size())
		}
	}
	if got, want := specs[bpf.MapMetrics].MaxEntries, bpf.MetricsSlot(255, 2)+1; got != want {
		t.Errorf("metrics has %d slots, want %d", got, want)
	}
}
