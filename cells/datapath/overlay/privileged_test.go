package overlay

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/overlays"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// unpublished is a real kernel without the map.
type unpublished struct{ *realKernel }

func (unpublished) Publish(int, *overlays.Overlay) error { return nil }

// inNamespace runs a test with real devices in a namespace of its own.
func inNamespace(t *testing.T, test func(k *realKernel)) {
	t.Helper()
	testnet.New(t).Do(func() {
		handle, err := rtnl.Open()
		if err != nil {
			t.Error(err)
			return
		}
		defer handle.Close()
		test(&realKernel{handle: handle, procfs: "/proc"})
	})
}

func wanted() *overlays.Overlay {
	return &overlays.Overlay{Device: podlink.OverlayDevice, Port: 8472, MAC: macOf("node-1"), MTU: 1500, Up: true}
}

func TestPrivilegedOps_DeviceIsCreatedReusedAndDeleted(t *testing.T) {
	t.Parallel()
	inNamespace(t, func(k *realKernel) {
		o := newOps(unpublished{k})
		var first int
		for _, change := range []func(*overlays.Overlay){func(*overlays.Overlay) {}, func(*overlays.Overlay) {}, func(r *overlays.Overlay) { r.MTU = 1400 },
			func(r *overlays.Overlay) { r.MAC = macOf("node-2") }, func(r *overlays.Overlay) { r.Port = 4789 }} {
			row := wanted()
			change(row)
			before, _, _ := k.Get(podlink.OverlayDevice)
			if err := o.Update(t.Context(), nil, 0, row); err != nil {
				t.Error(err)
				return
			}
			have, found, err := k.Get(podlink.OverlayDevice)
			if isNew := have.Index != before.Index; have.Up == isNew {
				t.Errorf("new %v, up %v: a device is set up when its program is attached to it", isNew, have.Up)
			}
			err = errors.Join(err, o.Update(t.Context(), nil, 0, row))
			have, _, _ = k.Get(podlink.OverlayDevice)
			want := device{Index: have.Index, Type: "vxlan", Metadata: true, Port: row.Port, Group: podlink.OverlayGroup, MAC: row.MAC, MTU: row.MTU, Up: true}
			if err != nil || !found || have != want {
				t.Errorf("%+v, %v, want %+v", have, err, want)
			}
			if first == 0 {
				first = have.Index
			}
			if same := have.Index == first; same != (row.Port == 8472) {
				t.Errorf("index %d after %d, port %d", have.Index, first, row.Port)
			}
		}
		if err := errors.Join(o.remove(podlink.OverlayDevice, mac.Addr{}), o.remove(podlink.OverlayDevice, mac.Addr{})); err != nil {
			t.Error(err)
		}
		if _, found, err := k.Get(podlink.OverlayDevice); found || err != nil {
			t.Errorf("found %v, %v", found, err)
		}
	})
}

// A foreign device is neither changed nor deleted.
func TestPrivilegedOps_ForeignDeviceWithSameName(t *testing.T) {
	t.Parallel()
	inNamespace(t, func(k *realKernel) {
		if err := k.handle.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: podlink.OverlayDevice}}); err != nil {
			t.Error(err)
			return
		}
		o := newOps(unpublished{k})
		err := o.Update(t.Context(), nil, 0, wanted())
		if err == nil || !strings.Contains(err.Error(), "a foreign bridge has this name: rename or delete it") {
			t.Errorf("got %v", err)
		}
		if err := o.remove(podlink.OverlayDevice, mac.Addr{}); err != nil {
			t.Error(err)
		}
		if have, _, err := k.Get(podlink.OverlayDevice); err != nil || have.Type != "bridge" {
			t.Errorf("it is %+v, %v", have, err)
		}
	})
}

// The error names the user of the port: a VXLAN device of another kind, one of the same kind, a process.
func TestPrivilegedOps_PortIsTaken(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		take func(k *realKernel) error
		want string
	}{
		"flannel": {func(k *realKernel) error {
			v := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "flannel.1"}, VxlanId: 1, Port: 8472}
			return errors.Join(k.handle.LinkAdd(v), k.handle.LinkSetUp(v))
		}, "device flannel.1 has UDP port 8472: remove it, or set --tunnel-port to another port on all nodes"},
		"Cilium": {func(k *realKernel) error {
			v := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "cilium_vxlan"}, FlowBased: true, Port: 8472}
			return errors.Join(k.handle.LinkAdd(v), k.handle.LinkSetUp(v))
		}, "device cilium_vxlan has UDP port 8472"},
		"a process": {func(*realKernel) error {
			conn, err := net.ListenUDP("udp4", &net.UDPAddr{Port: 8472})
			if err == nil {
				t.Cleanup(func() { _ = conn.Close() })
			}
			return err
		}, fmt.Sprintf("process %d (", os.Getpid())},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inNamespace(t, func(k *realKernel) {
				if err := c.take(k); err != nil {
					t.Error(err)
					return
				}
				o := newOps(unpublished{k})
				err := o.Update(t.Context(), nil, 0, wanted())
				if err == nil { // some ports are bound only when the device is set up
					err = o.Update(t.Context(), nil, 0, wanted())
				}
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %q", err, c.want)
				}
			})
		})
	}
}
