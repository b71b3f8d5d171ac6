package tests

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// verifierBudget is the verifier's budget for one program, in processed instructions.
const verifierBudget = 14_000

func TestMapSpecs_MatchContract(t *testing.T) {
	t.Parallel()
	specs, err := bpf.MapSpecs()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]struct {
		kind       ebpf.MapType
		key, value uint32
	}{
		bpf.MapEndpointFacts:   {ebpf.Array, 4, 104},
		bpf.MapLinks:           {ebpf.Hash, 4, 4},
		bpf.MapEndpoints:       {ebpf.Hash, 20, 8},
		bpf.MapIpcache:         {ebpf.Hash, 20, 8},
		bpf.MapIpcachePrefixes: {ebpf.LPMTrie, 24, 8},
		bpf.MapMetrics:         {ebpf.PerCPUArray, 4, 16},
		bpf.MapEvents:          {ebpf.RingBuf, 0, 0},
		bpf.MapEventsLost:      {ebpf.PerCPUArray, 4, 8},
		bpf.MapDropTokens:      {ebpf.Array, 4, 16},
		bpf.MapDatapath:        {ebpf.Array, 4, 4},
		bpf.MapPolicy:          {ebpf.Hash, 16, 8},
		bpf.MapPolicyRanges:    {ebpf.LPMTrie, 16, 8},
		bpf.MapCIDRs:           {ebpf.LPMTrie, 24, 8},
		bpf.MapEpochs:          {ebpf.Array, 4, 4},
		bpf.MapEpochShards:     {ebpf.Array, 4, 4},
		bpf.MapCtEst4:          {ebpf.Hash, 16, 56},
		bpf.MapCtEst6:          {ebpf.Hash, 40, 56},
		bpf.MapCtNew4:          {ebpf.LRUHash, 16, 56},
		bpf.MapCtNew6:          {ebpf.LRUHash, 40, 56},
		bpf.MapCtBurst4:        {ebpf.LRUHash, 16, 56},
		bpf.MapCtBurst6:        {ebpf.LRUHash, 40, 56},
		bpf.MapCtRates:         {ebpf.Array, 4, 8},
		bpf.MapRejectRates:     {ebpf.Array, 4, 8},
		bpf.MapCtFlows:         {ebpf.Array, 4, 4},
		bpf.MapCtSignals:       {ebpf.RingBuf, 0, 0},
		bpf.MapVerdictTokens:   {ebpf.Array, 4, 16},
		bpf.MapFrags:           {ebpf.LRUHash, 40, 8},
		bpf.MapFragsBurst:      {ebpf.LRUHash, 40, 8},
		bpf.MapFragRates:       {ebpf.Array, 4, 8},
		bpf.MapServices:        {ebpf.Hash, 24, 28},
		bpf.MapServiceSlots:    {ebpf.Array, 4, 4},
		bpf.MapBackends:        {ebpf.Hash, 4, 24},
		bpf.MapMaglev:          {ebpf.Array, 4, 4},
		bpf.MapAffinity:        {ebpf.LRUHash, 24, 8},
		bpf.MapAffinityMembers: {ebpf.Hash, 8, 4},
		bpf.MapSourceRanges:    {ebpf.LPMTrie, 28, 4},
		bpf.MapNat4:            {ebpf.Hash, 16, 40},
		bpf.MapNat6:            {ebpf.Hash, 40, 64},
		bpf.MapNatFlows:        {ebpf.Array, 4, 8},
		bpf.MapNatTotals:       {ebpf.Array, 4, 8},
		bpf.MapSockConnected:   {ebpf.SkStorage, 4, 64},
		bpf.MapSockSent:        {ebpf.SkStorage, 4, 512},
		bpf.MapNetdevs:         {ebpf.Hash, 4, 24},
		bpf.MapUnmasqueraded:   {ebpf.LPMTrie, 24, 4},
		bpf.MapOverlay:         {ebpf.Array, 4, 32},
		bpf.MapNodes:           {ebpf.Array, 4, 64},
		bpf.MapNodeAddrs:       {ebpf.Hash, 20, 4},
		bpf.MapEncap:           {ebpf.Array, 4, 12},
		bpf.MapKnownIdentities: {ebpf.Array, 4, 8},
		bpf.MapIdentityClasses: {ebpf.Array, 4, 8},
		bpf.MapResizeState:     {ebpf.Array, 4, 4},
	}
	for name, w := range want {
		m := specs[name]
		if m == nil {
			t.Errorf("map %s: not declared by any program", name)
			continue
		}
		if m.Type != w.kind || m.KeySize != w.key || m.ValueSize != w.value {
			t.Errorf("map %s: %v with key %d, value %d; want %v, %d, %d", name, m.Type, m.KeySize, m.ValueSize, w.kind, w.key, w.value)
		}
		delete(specs, name)
	}
	for name := range specs {
		t.Errorf("map %s: not expected", name)
	}
}

func TestLoad_UnknownProgram(t *testing.T) {
	t.Parallel()
	if _, err := bpf.Load("nothing"); !errors.Is(err, bpf.ErrUnknownProgram) {
		t.Fatalf("got %v", err)
	}
}

func TestPrivilegedPrograms_PassTheVerifier(t *testing.T) {
	t.Parallel()
	testnet.RequirePrivileges(t)
	most := map[string]uint32{} // maximum of processed instructions over all modes, by program
	onModes(t, func(t *testing.T, constants map[string]uint32) { passTheVerifier(t, constants, most) })
	for name, n := range most {
		t.Attr("verifier:"+name, fmt.Sprintf("%d instructions processed, budget %d", n, verifierBudget))
	}
}

func passTheVerifier(t *testing.T, constants, most map[string]uint32) {
	for _, object := range append(bpf.Objects(), bpf.L3DevIngress, bpf.L3DevEgress) {
		spec, err := bpf.Load(object)
		if err != nil {
			t.Fatal(err)
		}
		setConstants(t, spec, constants)
		coll, err := ebpf.NewCollection(spec)
		if err != nil {
			var verifier *ebpf.VerifierError
			if errors.As(err, &verifier) {
				t.Fatalf("%s: %+v", object, verifier) // all lines of the verifier log
			}
			t.Fatal(err)
		}
		defer coll.Close()
		for name, program := range coll.Programs {
			info, err := program.Info()
			if err != nil {
				t.Fatal(err)
			}
			n, ok := info.VerifiedInstructions()
			if !ok {
				t.Skip("the kernel does not tell how many instructions it verified: needs 5.16")
			}
			most[name] = max(most[name], n)
			if n > verifierBudget {
				t.Errorf("%s: the verifier processed %d instructions, the budget is %d", name, n, verifierBudget)
			}
		}
	}
}

// onModes runs a test with the constants of each routing mode: the verifier skips code of the other mode. Programs for a resize of maps of flows have more
// code in both modes.
func onModes(t *testing.T, test func(t *testing.T, constants map[string]uint32)) {
	t.Helper()
	tunnel := map[string]uint32{bpf.VariableTunnelPort: tunnelPort, bpf.VariableEncapModes: encapAll, bpf.VariableDirectAccepted: 1, bpf.VariableDirectBesideTunnel: 1}
	resize := maps.Clone(tunnel)
	resize[bpf.VariableResizeNumber] = 1
	for _, name := range bpf.FlowMaps() {
		resize[bpf.VariableResizeMaps] |= bpf.ResizeMap(name)
	}
	for mode, constants := range map[string]map[string]uint32{"native": nil, "tunnel": tunnel, "resize": resize} {
		t.Run(mode, func(t *testing.T) { test(t, constants) })
	}
}

func setConstants(t *testing.T, spec *ebpf.CollectionSpec, constants map[string]uint32) {
	t.Helper()
	for name, value := range constants {
		if v := spec.Variables[name]; v != nil {
			if err := v.Set(value); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Programs may use this part of the 512 bytes of stack that the kernel gives to a chain of function calls (MAX_BPF_STACK in include/linux/filter.h). The rest
// is reserved for further functions.
const stackBudget = 352

// The kernel does not report the stack size of the deepest call chain. The size is within the budget if the kernel accepts the program after its first
// function reserves all stack beyond the budget.
func TestPrivilegedPrograms_FitStackBudget(t *testing.T) {
	t.Parallel()
	testnet.RequirePrivileges(t)
	own := map[string]map[string]int{} // by object
	for _, object := range bpf.Objects() {
		own[object] = firstFrames(t, object)
	}
	onModes(t, func(t *testing.T, constants map[string]uint32) { checkStackHeadroom(t, constants, own) })
}

// checkStackHeadroom loads all objects with constants. own is the stack size of the first function of each program, by object.
func checkStackHeadroom(t *testing.T, constants map[string]uint32, own map[string]map[string]int) {
	for _, object := range bpf.Objects() {
		spec, err := bpf.Load(object)
		if err != nil {
			t.Fatal(err)
		}
		setConstants(t, spec, constants)
		for name, p := range spec.Programs {
			// The first instruction stays first: it has the symbol of the function, and perhaps a relocation.
			deep := asm.StoreImm(asm.R10, int16(-(own[object][name] + 512 - stackBudget)), 0, asm.Word)
			p.Instructions = slices.Insert(p.Instructions, 1, deep)
		}
		coll, err := ebpf.NewCollection(spec)
		if err != nil {
			t.Errorf("%s: a chain of calls takes more than %d bytes of stack: %v", object, stackBudget, err)
			continue
		}
		coll.Close()
	}
}

// firstFrames returns the stack size of the first function of each program of an object.
func firstFrames(t *testing.T, object string) map[string]int {
	t.Helper()
	spec, err := bpf.Load(object)
	if err != nil {
		t.Fatal(err)
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats}})
	if err != nil {
		t.Fatal(err)
	}
	defer coll.Close()
	frames := map[string]int{}
	for name, p := range coll.Programs {
		_, depths, found := strings.Cut(p.VerifierLog, "stack depth ")
		depth, err := strconv.Atoi(depths[:max(0, strings.IndexAny(depths, "+\n"))])
		if !found || err != nil {
			t.Fatalf("%s: the verifier does not tell the stack of functions:\n%s", name, p.VerifierLog)
		}
		frames[name] = depth
	}
	return frames
}

// bucketsOf returns the memory of an empty hash that allocates entries on demand: buckets of 16 bytes (kernel/bpf/hashtab.c), and a little more.
func bucketsOf(entries uint32) uint64 { return 16<<bits.Len32(entries-1) + 1<<20 }

// The budget of kernel memory for all maps at their default sizes on two CPUs: some maps have a part per CPU.
const memoryBudget = 88_000_000

func TestPrivilegedMaps_FitTheMemoryBudget(t *testing.T) {
	t.Parallel()
	testnet.RequirePrivileges(t)
	specs, err := bpf.MapSpecs()
	if err != nil {
		t.Fatal(err)
	}
	var total uint64
	for _, spec := range specs {
		m, err := ebpf.NewMap(spec)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		info, err := m.Info()
		if err != nil {
			t.Fatal(err)
		}
		bytes, _ := info.Memlock() // an empty trie uses no memory
		if spec.Type == ebpf.Hash && spec.Flags&unix.BPF_F_NO_PREALLOC != 0 {
			bytes = min(bytes, bucketsOf(spec.MaxEntries)) // before Linux 6.4 the kernel reports the size of a full map
		}
		total += bytes
	}
	t.Attr("memory", fmt.Sprintf("%d bytes for %d maps, budget %d", total, len(specs), memoryBudget))
	if total == 0 || total > memoryBudget {
		t.Errorf("all maps take %d bytes, the budget is %d", total, memoryBudget)
	}
}
