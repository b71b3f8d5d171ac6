package deviceobserver

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/script"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/tables/devices"
)

// fakeKernel is a [kernel] with state. It announces changes, unless silent is set.
type fakeKernel struct {
	calm chan struct{} // closed when the restless neighbour is removed

	mu        sync.Mutex
	devices   map[int]*devices.Device
	addresses map[string]devices.Address
	routes    map[string]*devices.Route
	neighbors map[string]devices.Neighbor
	feed      *fakeFeed
	silent    bool  // do not announce
	fail      error // of the next list
	lists     int   // number of full lists
}

func newFakeKernel() *fakeKernel {
	return &fakeKernel{devices: map[int]*devices.Device{}, addresses: map[string]devices.Address{},
		routes: map[string]*devices.Route{}, neighbors: map[string]devices.Neighbor{}}
}

type fakeFeed struct {
	changes chan change
	err     error
}

func (f *fakeFeed) Changes() <-chan change { return f.changes }
func (f *fakeFeed) Err() error             { return f.err }

func (k *fakeKernel) Subscribe(ctx context.Context) (feed, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := &fakeFeed{changes: make(chan change, 1000)}
	k.feed = f
	context.AfterFunc(ctx, func() { k.end(f, nil) })
	return f, nil
}

// end closes a feed once.
func (k *fakeKernel) end(f *fakeFeed, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if f != nil && k.feed == f {
		k.feed, f.err = nil, err
		close(f.changes)
	}
}

func (k *fakeKernel) List() (state, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.fail; err != nil {
		k.fail = nil
		return state{}, err
	}
	k.lists++
	return state{slices.Collect(maps.Values(k.devices)), slices.Collect(maps.Values(k.addresses)),
		slices.Collect(maps.Values(k.routes)), slices.Collect(maps.Values(k.neighbors))}, nil
}

func (k *fakeKernel) Routes() ([]*devices.Route, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Values(k.routes)), nil
}

// announce sends a change to the feed. The caller must hold the lock.
func (k *fakeKernel) announce(c change) {
	if k.feed != nil && !k.silent {
		k.feed.changes <- c
	}
}

func (k *fakeKernel) setLink(d devices.Device, gone bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if gone {
		delete(k.devices, d.Index)
		maps.DeleteFunc(k.addresses, func(_ string, a devices.Address) bool { return a.LinkIndex == d.Index })
		maps.DeleteFunc(k.routes, func(_ string, r *devices.Route) bool { return r.LinkIndex == d.Index })
		maps.DeleteFunc(k.neighbors, func(_ string, n devices.Neighbor) bool { return n.LinkIndex == d.Index })
	} else {
		k.devices[d.Index] = &d
		if !d.Up { // as the kernel does, without a notification
			maps.DeleteFunc(k.routes, func(_ string, r *devices.Route) bool { return r.LinkIndex == d.Index && r.Dst.Addr().Is4() })
		}
	}
	k.announce(change{device: &d, gone: gone})
}

func (k *fakeKernel) setAddress(a devices.Address, gone bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	id := a.Prefix.String() + strconv.Itoa(a.LinkIndex)
	k.addresses[id] = a
	if gone {
		delete(k.addresses, id)
		maps.DeleteFunc(k.routes, func(_ string, r *devices.Route) bool { return r.Src == a.Addr() && r.Src.Is4() })
	}
	k.announce(change{address: &a, gone: gone})
}

func (k *fakeKernel) setRoute(r devices.Route, gone, replacing bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if replacing {
		maps.DeleteFunc(k.routes, func(key string, _ *devices.Route) bool { return strings.HasPrefix(key, r.Destination()) })
	}
	k.routes[r.Key()] = &r
	if gone {
		delete(k.routes, r.Key())
	}
	k.announce(change{route: []*devices.Route{&r}, gone: gone, replacing: replacing})
}

func (k *fakeKernel) setNeighbor(n devices.Neighbor, gone bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	id := n.Addr.String() + strconv.Itoa(n.LinkIndex)
	k.neighbors[id] = n
	if gone {
		delete(k.neighbors, id)
	}
	k.announce(change{neighbor: &n, gone: gone})
}

// command returns the script command that changes the fake.
func (k *fakeKernel) command() hive.ScriptCmdOut {
	return hive.NewScriptCmd("kernel", script.Command(
		script.CmdUsage{Summary: "change the fake kernel", Args: "[-]link|address|route|neighbor|silent|overrun|restless|fail ..."},
		func(_ *script.State, args ...string) (script.WaitFunc, error) {
			if len(args) == 0 {
				return nil, script.ErrUsage
			}
			what, gone := strings.CutPrefix(args[0], "-")
			return nil, k.do(what, gone, args[1:])
		}))
}

func (k *fakeKernel) do(what string, gone bool, args []string) error {
	index := 0
	if len(args) > 0 {
		index, _ = strconv.Atoi(args[0])
	}
	has := func(word string) bool { return slices.Contains(args, word) }
	switch what {
	case "link": // index name type [up] [group=n]
		d := devices.Device{Index: index, MTU: 1500}
		if !gone {
			d.Name, d.Type, d.Up = args[1], args[2], has("up")
		}
		if d.Up {
			d.Flags |= unix.IFF_UP
		}
		k.setLink(d, gone)
	case "address": // index prefix
		k.setAddress(devices.Address{LinkIndex: index, Prefix: netip.MustParsePrefix(args[1])}, gone)
	case "route": // index prefix [from source] [replace]
		r := devices.Route{Table: 254, LinkIndex: index, Dst: netip.MustParsePrefix(args[1]), Type: unicast}
		if i := slices.Index(args, "from"); i > 0 {
			r.Src = netip.MustParseAddr(args[i+1])
		}
		k.setRoute(r, gone, has("replace"))
	case "neighbor": // index address
		k.setNeighbor(devices.Neighbor{LinkIndex: index, Addr: netip.MustParseAddr(args[1]), State: 2}, gone)
	case "silent":
		k.mu.Lock()
		defer k.mu.Unlock()
		k.silent = !gone
	case "overrun":
		k.mu.Lock()
		f := k.feed
		k.mu.Unlock()
		k.end(f, unix.ENOBUFS)
	case "restless": // adds and removes a neighbour every millisecond, until -restless
		if gone {
			close(k.calm)
			return nil
		}
		k.calm = make(chan struct{})
		go func(calm chan struct{}) {
			for here := true; ; here = !here {
				select {
				case <-calm:
					return
				case <-time.After(time.Millisecond):
					k.setNeighbor(devices.Neighbor{LinkIndex: 1, Addr: netip.MustParseAddr("192.0.2.99"), State: 2}, !here)
				}
			}
		}(k.calm)
	case "fail":
		k.mu.Lock()
		defer k.mu.Unlock()
		k.fail = errors.New("netlink is tired")
	default:
		return script.ErrUsage
	}
	return nil
}
