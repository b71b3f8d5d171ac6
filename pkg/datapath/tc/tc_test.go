package tc

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/testnet"
)

var blocks = Blocks{Ingress: 0x57470001, Egress: 0x57470002}

// fixture is a namespace with a veth pair and an open handle.
type fixture struct {
	*Handle
	a, b int // ifindexes
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	var f fixture
	testnet.New(t).Do(func() {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}); err != nil {
			t.Errorf("add veth: %v", err)
			return
		}
		for name, index := range map[string]*int{"a": &f.a, "b": &f.b} {
			link, err := netlink.LinkByName(name)
			if err != nil {
				t.Error(err)
				return
			}
			*index = link.Attrs().Index
		}
		var err error
		if f.Handle, err = Open(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(f.Close)
	return f
}

// program returns a program that returns a constant verdict.
func program(t *testing.T, verdict int32) (*ebpf.Program, uint32) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()}})
	if err != nil {
		t.Fatalf("load a program: %v", err)
	}
	t.Cleanup(func() { _ = p.Close() })
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return p, uint32(id)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPrivilegedClsact_BlocksAreSetChangedAndDeleted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if _, found, err := f.Clsact(f.a); err != nil || found {
		t.Fatalf("a new device has a clsact: %v, error %v", found, err)
	}
	for _, want := range []Blocks{blocks, blocks, {}, {Ingress: 3}, blocks} {
		must(t, f.EnsureClsact(f.a, want))
		have, found, err := f.Clsact(f.a)
		if err != nil || !found || have != want {
			t.Fatalf("blocks are %+v, found %v, error %v; want %+v", have, found, err, want)
		}
	}
	must(t, f.EnsureClsact(f.b, blocks))
	all, err := f.Clsacts()
	if err != nil || len(all) != 2 || all[f.a] != blocks || all[f.b] != blocks {
		t.Fatalf("dump shows %+v, error %v", all, err)
	}
	for range 2 {
		must(t, f.DeleteClsact(f.a))
	}
	if _, found, err := f.Clsact(f.a); err != nil || found {
		t.Fatalf("the clsact is still there: %v, error %v", found, err)
	}
	must(t, f.DeleteClsact(99999))
	if err := f.EnsureClsact(99999, blocks); !errors.Is(err, ErrNoDevice) {
		t.Fatalf("a missing device gives %v, want ErrNoDevice", err)
	}
}

func TestPrivilegedFilter_ReplacedInPlaceForAllDevicesOfABlock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	must(t, f.EnsureClsact(f.a, blocks))
	must(t, f.EnsureClsact(f.b, blocks))
	at := Block(blocks.Ingress)
	for generation := range int32(3) {
		p, id := program(t, generation)
		must(t, f.ReplaceFilter(at, "pod_egress", p.FD()))
		filters, err := f.Filters(at)
		if err != nil || len(filters) != 1 || !filters[0].Ours() || filters[0].ProgramID != id || filters[0].Name != "pod_egress" {
			t.Fatalf("generation %d: filters %+v, error %v; want one with program %d", generation, filters, err, id)
		}
	}
	if other, err := f.Filters(Block(blocks.Egress)); err != nil || len(other) != 0 {
		t.Fatalf("the other block has %+v, error %v", other, err)
	}
	must(t, f.DeleteClsact(f.a))
	if filters, err := f.Filters(at); err != nil || len(filters) != 1 {
		t.Fatalf("the block lost its filter with one of its devices: %+v, error %v", filters, err)
	}
	for range 2 {
		must(t, f.DeleteFilter(at))
	}
	if filters, err := f.Filters(at); err != nil || len(filters) != 0 {
		t.Fatalf("still there: %+v, error %v", filters, err)
	}
}

func TestPrivilegedFilter_BlockWithoutADevice(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p, _ := program(t, 0)
	if err := f.ReplaceFilter(Block(blocks.Ingress), "pod_egress", p.FD()); err == nil {
		t.Fatal("a block that no device holds took a filter")
	}
	if filters, err := f.Filters(Block(blocks.Ingress)); err != nil || len(filters) != 0 {
		t.Fatalf("it shows %+v, error %v", filters, err)
	}
	must(t, f.DeleteFilter(Block(blocks.Ingress)))
}

func TestPrivilegedFilter_OnOneDevice(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	must(t, f.EnsureClsact(f.a, Blocks{}))
	p, id := program(t, -1)
	must(t, f.ReplaceFilter(Egress(f.a), "host_egress", p.FD()))
	filters, err := f.Filters(Egress(f.a))
	if err != nil || len(filters) != 1 || filters[0].ProgramID != id {
		t.Fatalf("filters %+v, error %v", filters, err)
	}
	if filters, err := f.Filters(Ingress(f.a)); err != nil || len(filters) != 0 {
		t.Fatalf("the other hook has %+v, error %v", filters, err)
	}
}

// FuzzParse passes messages to the parsers that no kernel sends.
func FuzzParse(f *testing.F) {
	f.Add(make([]byte, 20))
	f.Add(append(make([]byte, 20), 8, 0, 1, 0, 'b', 'p', 'f', 0, 6, 0, 2, 0, 1, 2))
	f.Fuzz(func(t *testing.T, m []byte) {
		if _, _, ok := parseClsact(m); ok && len(m) < 20 {
			t.Fatal("a clsact was read from less than its header")
		}
		if filter, ok := parseFilter(m); ok && filter.Handle == 0 {
			t.Fatal("a message without a handle is no filter")
		}
	})
}
