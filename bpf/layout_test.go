package bpf

import (
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
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
		"endpoint_facts": EndpointFacts{}, "endpoint_ref": EndpointRef{}, "addr_key": AddrKey{}, "lpm_key": LpmKey{},
		"ipcache_entry": IpcacheEntry{}, "metrics_value": MetricsValue{}, "token_bucket": TokenBucket{}, "drop_event": DropEvent{},
		"datapath_state": DatapathState{}, "policy_key": PolicyKey{}, "policy_entry": PolicyEntry{}, "policy_range_key": PolicyRangeKey{},
		"ct_key4": CtKey4{}, "ct_key6": CtKey6{}, "ct_entry": CtEntry{}, "frag_key": FragKey{}, "frag_entry": FragEntry{},
		"netdev": Netdev{}, "node": Node{}, "node_addr": NodeAddr{},
	}
	seen := map[string]bool{}
	for _, program := range Programs() {
		spec, err := Load(program)
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
	specs, err := MapSpecs()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ key, value any }{
		MapEndpointFacts: {uint32(0), EndpointFacts{}}, MapLinks: {uint32(0), uint32(0)}, MapEndpoints: {AddrKey{}, EndpointRef{}},
		MapIpcache: {AddrKey{}, IpcacheEntry{}}, MapIpcachePrefixes: {LpmKey{}, IpcacheEntry{}},
		MapMetrics: {uint32(0), MetricsValue{}}, MapEventsLost: {uint32(0), uint64(0)}, MapDropTokens: {uint32(0), TokenBucket{}},
		MapDatapath: {uint32(0), DatapathState{}}, MapPolicy: {PolicyKey{}, PolicyEntry{}},
		MapPolicyRanges: {PolicyRangeKey{}, PolicyEntry{}}, MapCIDRs: {LpmKey{}, CIDR{}}, MapEpochs: {uint32(0), uint32(0)}, MapEpochShards: {uint32(0), uint32(0)},
		MapCtEst4: {CtKey4{}, CtEntry{}}, MapCtEst6: {CtKey6{}, CtEntry{}}, MapCtNew4: {CtKey4{}, CtEntry{}},
		MapNodes: {uint32(0), Node{}}, MapNodeAddrs: {AddrKey{}, NodeAddr{}}, MapCtNew6: {CtKey6{}, CtEntry{}}, MapCtFlows: {uint32(0), uint32(0)}, MapNatFlows: {uint32(0), NatCount{}}, MapNatTotals: {uint32(0), NatCount{}}, MapFrags: {FragKey{}, FragEntry{}},
	} {
		m := specs[name]
		if uintptr(m.KeySize) != reflect.TypeOf(c.key).Size() || uintptr(m.ValueSize) != reflect.TypeOf(c.value).Size() {
			t.Errorf("map %s: key of %d and value of %d bytes, Go has %d and %d", name, m.KeySize, m.ValueSize,
				reflect.TypeOf(c.key).Size(), reflect.TypeOf(c.value).Size())
		}
	}
	if got, want := specs[MapMetrics].MaxEntries, MetricsSlot(255, 2)+1; got != want {
		t.Errorf("metrics has %d slots, want %d", got, want)
	}
}
