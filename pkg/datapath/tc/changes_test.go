package tc

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/testnet"
)

func TestPrivilegedChanges_ReportDeletedClsactAndBlockFilters(t *testing.T) {
	t.Parallel()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	testnet.New(t).Do(func() {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "one", Index: 11}, PeerName: "other"}); err != nil {
			t.Error(err)
			return
		}
		h, err := Open()
		if err != nil {
			t.Error(err)
			return
		}
		defer h.Close()
		changes, err := OpenChanges()
		if err != nil {
			t.Error(err)
			return
		}
		defer changes.Close()
		next := func(want Change) {
			t.Helper()
			for { // the deletion of an object with dependent objects is announced several times
				got, err := changes.Next(t.Context())
				if err != nil {
					t.Errorf("%v; want %+v", err, want)
				}
				if err != nil || slices.Contains(got, want) {
					return
				}
			}
		}
		check := func(err error) {
			t.Helper()
			if err != nil {
				t.Error(err)
			}
		}
		silent, err := OpenChanges()
		check(err)
		check(h.EnsureClsact(11, Blocks{Ingress: 0x21, Egress: 0x22}))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if got, err := silent.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("told of %+v, %v when a clsact came", got, err)
		}
		check(h.ReplaceFilter(Block(0x21), "f", program.FD()))
		next(Change{Block: 0x21})
		check(h.ReplaceFilter(Block(0x22), "f", program.FD()))
		next(Change{Block: 0x22})
		check(h.DeleteFilter(Block(0x21)))
		next(Change{Block: 0x21})
		check(h.DeleteClsact(11))
		next(Change{Ifindex: 11, Clsact: true})

		// Filters of a device without shared blocks.
		check(h.EnsureClsact(11, Blocks{}))
		check(h.ReplaceFilter(Egress(11), "f", program.FD()))
		next(Change{Ifindex: 11})
	})
}

// Parsing never reads beyond the end of a message.
func FuzzParseChange(f *testing.F) {
	f.Add(uint16(unix.RTM_DELQDISC), make([]byte, 20))
	f.Add(uint16(unix.RTM_NEWTFILTER), []byte{0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 1, 0, 0x47, 0x57, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, kind uint16, m []byte) {
		if c, ok := parseChange(kind, m); ok && c.Block != 0 && (c.Ifindex != 0 || c.Clsact) {
			t.Errorf("%+v is about a block and a device", c)
		}
	})
}
