package deviceobserver

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// observed is a running observer of a namespace.
type observed struct {
	db    *statedb.DB
	store *store
	real  *netlinkKernel
}

// observe starts the cell in a namespace, with a receive buffer of this many bytes.
func observe(t *testing.T, ns *testnet.Namespace, buffer int) *observed {
	t.Helper()
	o := &observed{}
	h := hive.New(celltest.Infrastructure(), cell.Module("devices", "Devices",
		cell.Config(DefaultConfig),
		cell.ProvidePrivate(newKernel),
		Observer,
		cell.Invoke(func(db *statedb.DB, s *store, k kernel) {
			o.db, o.store, o.real = db, s, k.(*netlinkKernel)
			o.real.buffer = buffer
		}),
	))
	log := hivetest.Logger(t)
	ns.Do(func() {
		if err := h.Start(log, context.Background()); err != nil {
			t.Errorf("start: %v", err)
		}
	})
	t.Cleanup(func() {
		if err := h.Stop(log, context.Background()); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return o
}

// differs describes the differences between the tables and the kernel, without the selection of links. It does not compare neighbours: timers
// add and remove IPv6 neighbours.
func (o *observed) differs() string {
	txn := o.db.ReadTxn()
	have := state{routes: statedb.Collect(o.store.routes.All(txn)), addresses: statedb.Collect(o.store.addresses.All(txn))}
	for d := range o.store.devices.All(txn) {
		c := *d
		c.Selected, c.Reason = false, ""
		have.devices = append(have.devices, &c)
	}
	want, err := o.real.List()
	if err != nil {
		return err.Error()
	}
	return cmp.Or(
		compare("devices", have.devices, want.devices, func(d *devices.Device) string { return fmt.Sprintf("%+v", *d) }),
		compare("addresses", have.addresses, want.addresses, func(a devices.Address) string { return fmt.Sprintf("%+v", a) }),
		compare("routes", have.routes, want.routes, func(r *devices.Route) string { return fmt.Sprintf("%+v", *r) }),
	)
}

func compare[T any](what string, have, want []T, print func(T) string) string {
	lines := func(rows []T) (out []string) {
		for _, r := range rows {
			out = append(out, print(r))
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	h, w := lines(have), lines(want)
	if slices.Equal(h, w) {
		return ""
	}
	return fmt.Sprintf("%s: %d rows, kernel has %d\nfirst rows: %v\nkernel: %v", what, len(h), len(w), h, w)
}

// settles waits until the tables equal the kernel.
func (o *observed) settles(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for o.differs() != "" {
		if time.Now().After(deadline) {
			t.Fatalf("the tables do not become equal to the kernel: %s", o.differs())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// churn creates links with addresses and routes, changes them and deletes every other one.
func churn(t *testing.T, ns *testnet.Namespace, links int) {
	t.Helper()
	ns.Do(func() {
		check := func(err error) {
			if err != nil {
				t.Error(err)
			}
		}
		for i := range links {
			name := fmt.Sprintf("d%d", i)
			check(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "p" + name}))
			link, err := netlink.LinkByName(name)
			if err != nil {
				t.Error(err)
				return
			}
			addr, _ := netlink.ParseAddr(fmt.Sprintf("10.9.%d.1/24", i))
			check(netlink.AddrAdd(link, addr))
			addr6, _ := netlink.ParseAddr(fmt.Sprintf("fd00:9:%x::1/64", i))
			check(netlink.AddrAdd(link, addr6))
			check(netlink.LinkSetUp(link))
			check(netlink.LinkSetUp(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: "p" + name}}))
			switch i % 4 {
			case 0:
				check(netlink.LinkDel(link))
			case 1:
				check(netlink.LinkSetDown(link)) // the kernel deletes its IPv4 routes without a notification
			case 2:
				check(netlink.AddrDel(link, addr))
			}
		}
	})
}

func TestPrivilegedObserver_AgreesWithTheKernel(t *testing.T) {
	t.Parallel()
	ns := testnet.New(t)
	o := observe(t, ns, 1<<20)
	churn(t, ns, 24)
	o.settles(t)
}

// Any burst overruns a socket whose buffer holds only a few messages.
func TestPrivilegedObserver_RecoversFromAnOverrun(t *testing.T) {
	t.Parallel()
	ns := testnet.New(t)
	o := observe(t, ns, 2048)
	o.settles(t)
	// The observer reads nothing while the tables are locked.
	lock := o.db.WriteTxn(o.store.devices)
	churn(t, ns, 60)
	lock.Abort()
	o.settles(t)
}

func TestPrivilegedObserver_LeavesNoGoroutine(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("run", func(t *testing.T) {
		ns := testnet.New(t)
		o := observe(t, ns, 4096)
		churn(t, ns, 8)
		o.settles(t)
	})
	for deadline := time.Now().Add(time.Minute); ; {
		err := goleak.Find(before) // it waits for less than a second
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
