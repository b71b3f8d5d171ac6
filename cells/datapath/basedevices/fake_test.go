package basedevices

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/hive"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/tables/devices"
)

// fakeKernel is a [kernel] with state. It copies its links and addresses to the observed tables.
type fakeKernel struct {
	db        *statedb.DB
	devices   statedb.RWTable[*devices.Device]
	addresses statedb.RWTable[devices.Address]

	mu    sync.Mutex
	links map[string]end
	next  int // ifindex
	fail  int // number of the next calls that fail
}

func newFakeKernel(db *statedb.DB, links statedb.RWTable[*devices.Device], addrs statedb.RWTable[devices.Address]) *fakeKernel {
	return &fakeKernel{db: db, devices: links, addresses: addrs, links: map[string]end{}, next: 10}
}

// change runs f with the lock held and copies the result to the observed tables.
func (k *fakeKernel) change(f func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fail > 0 {
		k.fail--
		return errors.New("netlink is tired")
	}
	if err := f(); err != nil {
		return err
	}
	txn := k.db.WriteTxn(k.devices, k.addresses)
	defer txn.Commit()
	_, _ = k.devices.DeleteAll(txn), k.addresses.DeleteAll(txn)
	for name, l := range k.links {
		d := &devices.Device{Index: l.Index, Name: name, Type: l.Type, MTU: l.MTU, Up: l.Up, ParentIndex: l.PeerIndex}
		if l.NoARP {
			d.Flags |= unix.IFF_NOARP
		}
		_, _, _ = k.devices.Insert(txn, d)
		for _, a := range l.Addresses {
			_, _, _ = k.addresses.Insert(txn, devices.Address{LinkIndex: l.Index, Prefix: a})
		}
	}
	return nil
}

func (k *fakeKernel) Get(name string) (end, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l, found := k.links[name]
	return l, found, nil
}

func (k *fakeKernel) Create(name, peer string) error {
	return k.change(func() error {
		_, a := k.links[name]
		if _, b := k.links[peer]; a || b {
			return unix.EEXIST
		}
		k.links[name] = end{Index: k.next, PeerIndex: k.next + 1, Type: "veth", MTU: 1500}
		k.links[peer] = end{Index: k.next + 1, PeerIndex: k.next, Type: "veth", MTU: 1500}
		k.next += 2
		return nil
	})
}

func (k *fakeKernel) Rename(index int, name string) error {
	return k.change(func() error {
		for old, l := range k.links {
			if l.Index == index {
				delete(k.links, old)
				k.links[name] = l
				break
			}
		}
		return nil
	})
}

func (k *fakeKernel) Set(name string, want end) error {
	return k.edit(name, func(l *end) {
		if want.MTU != 0 {
			l.MTU = want.MTU
		}
		l.Up, l.NoARP = want.Up, want.NoARP
	})
}

func (k *fakeKernel) AddAddress(name string, a netip.Prefix) error {
	return k.edit(name, func(l *end) { l.Addresses = append(slices.Clone(l.Addresses), a) })
}

func (k *fakeKernel) DeleteAddress(name string, a netip.Prefix) error {
	return k.edit(name, func(l *end) {
		l.Addresses = slices.DeleteFunc(slices.Clone(l.Addresses), func(b netip.Prefix) bool { return a == b })
	})
}

func (k *fakeKernel) edit(name string, f func(*end)) error {
	return k.change(func() error {
		l, found := k.links[name]
		if !found {
			return unix.ENODEV
		}
		f(&l)
		k.links[name] = l
		return nil
	})
}

// commands provides script commands that change and print the fake.
func (k *fakeKernel) commands() hive.ScriptCmdsOut {
	return hive.NewScriptCmds(map[string]script.Cmd{
		"link": script.Command(script.CmdUsage{Summary: "change links as another program", Args: "add name type|del name|down name|mtu name|rename name new|address name prefix|lose name prefix|fail"},
			func(_ *script.State, args ...string) (script.WaitFunc, error) { return nil, k.do(args) }),
		"kernel": script.Command(script.CmdUsage{Summary: "print the links in the fake kernel"},
			func(*script.State, ...string) (script.WaitFunc, error) {
				return func(*script.State) (string, string, error) { return k.print(), "", nil }, nil
			}),
	})
}

func (k *fakeKernel) do(args []string) error {
	switch args[0] {
	case "add":
		return k.change(func() error {
			k.links[args[1]] = end{Index: k.next, Type: args[2], MTU: 1500}
			k.next++
			return nil
		})
	case "del":
		return k.change(func() error {
			gone := k.links[args[1]]
			maps.DeleteFunc(k.links, func(_ string, l end) bool { return l.Index == gone.Index || l.Index == gone.PeerIndex })
			return nil
		})
	case "down":
		return k.edit(args[1], func(l *end) { l.Up = false })
	case "mtu":
		return k.edit(args[1], func(l *end) { l.MTU = 1280 })
	case "rename":
		k.mu.Lock()
		index := k.links[args[1]].Index
		k.mu.Unlock()
		return k.Rename(index, args[2])
	case "lose":
		return k.DeleteAddress(args[1], netip.MustParsePrefix(args[2]))
	case "address":
		return k.AddAddress(args[1], netip.MustParsePrefix(args[2]))
	case "pair":
		return k.Create(args[1], args[2])
	case "fail":
		k.mu.Lock()
		defer k.mu.Unlock()
		k.fail = 3
		return nil
	}
	return script.ErrUsage
}

func (k *fakeKernel) print() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(k.links)) {
		l := k.links[name]
		fmt.Fprintf(&out, "%s %s mtu %d up %v noarp %v %v\n", name, l.Type, l.MTU, l.Up, l.NoARP, l.Addresses)
	}
	return out.String()
}
