package policymaps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/script"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
)

// fakeMaps stores the contents of the maps in memory, records the order of writes, and fails as many of them as requested.
type fakeMaps struct {
	mu           sync.Mutex
	entries      map[entryKey]policycompiler.Entry
	cidrs        map[netip.Prefix]uint32
	known        []uint64
	classes      map[uint32]policycompiler.Classes
	slots        map[uint16]slot
	capacity     capacity
	cidrCapacity int
	epoch        int
	failures     int // number of writes that fail
	fail         string
	log          []string
}

func newFake() *fakeMaps {
	return &fakeMaps{entries: map[entryKey]policycompiler.Entry{}, cidrs: map[netip.Prefix]uint32{}, slots: map[uint16]slot{},
		known: make([]uint64, bpf.IdentityWords), classes: map[uint32]policycompiler.Classes{},
		capacity: capacity{1000, 100}, cidrCapacity: 100}
}

// write makes a change, or returns an error if one is requested.
func (f *fakeMaps) write(what string, change func()) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failures > 0 && strings.Contains(what, f.fail) {
		f.failures--
		return errors.New("no memory, says the test")
	}
	f.log = append(f.log, what)
	change()
	return nil
}

type fakeEntries struct{ *fakeMaps }

func (f fakeEntries) Put(id uint32, e policycompiler.Entry) error {
	verdict := "allow"
	if e.Deny {
		verdict = "deny"
	}
	f.mu.Lock()
	_, there := f.entries[entryKey{id, e.Key}]
	full := !there && len(f.entries) >= f.capacity.entries+f.capacity.ranges
	f.mu.Unlock()
	if full {
		return errors.New("a map is full that had room: entries are counted wrongly")
	}
	return f.write(fmt.Sprintf("put policy %d: %s %s", id, verdict, describe(e.Key)), func() { f.entries[entryKey{id, e.Key}] = e })
}

func (f fakeEntries) Delete(id uint32, k policycompiler.Key) error {
	return f.write(fmt.Sprintf("delete policy %d: %s", id, describe(k)), func() { delete(f.entries, entryKey{id, k}) })
}

func (f fakeEntries) Some(*cursor, int) (map[entryKey]policycompiler.Entry, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.entries), true, nil
}

func (f fakeEntries) Get(id uint32, k policycompiler.Key) (policycompiler.Entry, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, found := f.entries[entryKey{id, k}]
	return e, found, nil
}

func (f fakeEntries) Capacity() (capacity, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.capacity, nil
}

func (f fakeEntries) Slots() (map[uint16]slot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.slots), nil
}

type fakeCIDRs struct{ *fakeMaps }

func (f fakeCIDRs) Put(p netip.Prefix, n uint32) error {
	return f.write(fmt.Sprintf("put cidr %s: %d", p, n), func() { f.cidrs[p] = n })
}

func (f fakeCIDRs) Delete(p netip.Prefix) error {
	return f.write(fmt.Sprintf("delete cidr %s", p), func() { delete(f.cidrs, p) })
}

func (f fakeCIDRs) Dump() (map[netip.Prefix]uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.cidrs), nil
}

func (f fakeCIDRs) Capacity() (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cidrCapacity, nil
}

type fakeIdentities struct{ *fakeMaps }

func (f fakeIdentities) Put(word uint32, bits uint64) error {
	return f.write(fmt.Sprintf("put identities %v", identitiesIn(append(make([]uint64, word), bits))), func() { f.known[word] = bits })
}

func (f fakeIdentities) Dump() ([]uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.known), nil
}

type fakeClasses struct{ *fakeMaps }

func (f fakeClasses) Put(id uint32, c policycompiler.Classes) error {
	return f.write(fmt.Sprintf("put classes of identity %d: %d %d", id, c.Cluster, c.Namespace), func() {
		if f.classes[id] = c; c == (policycompiler.Classes{}) {
			delete(f.classes, id)
		}
	})
}

func (f fakeClasses) Dump() (map[uint32]policycompiler.Classes, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.classes), nil
}

func (f fakeCIDRs) Raise() error { return f.write("raise epoch", func() { f.epoch++ }) }

// fakeCommands returns script commands that print the fake, change it, and store the state of a previous run in it.
func fakeCommands(f *fakeMaps, l loops) upstream.ScriptCmdsOut {
	command := func(summary, args string, n int, run func(args []string) (string, error)) script.Cmd {
		return script.Command(script.CmdUsage{Summary: summary, Args: args}, func(_ *script.State, args ...string) (script.WaitFunc, error) {
			if len(args) != n {
				return nil, script.ErrUsage
			}
			out, err := run(args)
			return func(*script.State) (string, string, error) { return out, "", err }, nil
		})
	}
	locked := func(run func(args []string) (string, error)) func([]string) (string, error) {
		return func(args []string) (string, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return run(args)
		}
	}
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"kernel/log": command("Show the writes since the last time, without those of classes", "", 0, locked(func([]string) (string, error) {
			text := strings.Join(append(slices.DeleteFunc(f.log, func(line string) bool { return strings.HasPrefix(line, "put classes ") }), ""), "\n")
			f.log = nil
			return text, nil
		})),
		"kernel/whole-log": command("Show all writes since the last time", "", 0, locked(func([]string) (string, error) {
			text := strings.Join(append(f.log, ""), "\n")
			f.log = nil
			return text, nil
		})),
		"kernel/classes": command("Put classes of an identity past the agent", "identity cluster namespace", 3, locked(func(args []string) (string, error) {
			id, err1 := strconv.ParseUint(args[0], 10, 16)
			cluster, err2 := strconv.ParseUint(args[1], 10, 32)
			namespace, err3 := strconv.ParseUint(args[2], 10, 32)
			if f.classes[uint32(id)] = (policycompiler.Classes{Cluster: uint32(cluster), Namespace: uint32(namespace)}); cluster == 0 {
				delete(f.classes, uint32(id))
			}
			return "", errors.Join(err1, err2, err3)
		})),
		"kernel/fail": command("Let the next n writes fail whose description contains a text", "n text", 2, locked(func(args []string) (string, error) {
			n, err := strconv.Atoi(args[0])
			f.failures, f.fail = n, args[1]
			return "", err
		})),
		"kernel/room": command("Give the maps another size", "entries ranges", 2, locked(func(args []string) (string, error) {
			a, err1 := strconv.Atoi(args[0])
			b, err2 := strconv.Atoi(args[1])
			f.capacity = capacity{a, b}
			return "", errors.Join(err1, err2)
		})),
		"kernel/cidr-room": command("Give the map cidrs another size", "n", 1, locked(func(args []string) (string, error) {
			n, err := strconv.Atoi(args[0])
			f.cidrCapacity = n
			return "", err
		})),
		"kernel/leave-slot": command("Put what an earlier run left: endpoint ifindex ingress egress", "id ifindex in out", 4,
			locked(func(args []string) (string, error) {
				var n [4]uint64
				for i := range args {
					var err error
					if n[i], err = strconv.ParseUint(args[i], 10, 32); err != nil {
						return "", err
					}
				}
				f.slots[uint16(n[0])] = slot{ifindex: uint32(n[1]), ids: [4]uint32{uint32(n[2]), 0, uint32(n[3]), 0}}
				return "", nil
			})),
		"kernel/identity": command("Put the identity that an endpoint had in an earlier run into its slot", "id identity", 2,
			locked(func(args []string) (string, error) {
				id, err1 := strconv.ParseUint(args[0], 10, 16)
				identity, err2 := strconv.ParseUint(args[1], 10, 32)
				s := f.slots[uint16(id)]
				s.identity = uint32(identity)
				f.slots[uint16(id)] = s
				return "", errors.Join(err1, err2)
			})),
		"kernel/entry": command("Put an entry past the agent: policy allow|deny 301|cidr:16777217|class:2|any", "policy verdict peer", 3,
			locked(func(args []string) (string, error) {
				id, err1 := strconv.ParseUint(args[0], 10, 32)
				peer, isCIDR := strings.CutPrefix(args[2], "cidr:")
				k := policycompiler.Key{Kind: policycompiler.Identity}
				var identity uint64
				var err2 error
				if isCIDR {
					k.Kind = policycompiler.CIDR
				} else if number, isClass := strings.CutPrefix(peer, "class:"); isClass {
					k.Kind, peer = policycompiler.Class, number
					for i, s := range f.slots {
						for at := range s.ids {
							if uint64(s.ids[at]) == id {
								s.shapes[at] |= policycompiler.ShapeClasses
							}
						}
						f.slots[i] = s
					}
				}
				if peer == "any" {
					k.Kind = policycompiler.Any
				} else {
					identity, err2 = strconv.ParseUint(peer, 10, 32)
				}
				k.Identity = uint32(identity)
				f.entries[entryKey{uint32(id), k}] = policycompiler.Entry{Key: k, Deny: args[1] == "deny"}
				return "", errors.Join(err1, err2)
			})),
		"kernel/known": script.Command(script.CmdUsage{Summary: "Make these all identities of the map known_identities, past the agent", Args: "identity..."},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				_, err := locked(func(args []string) (string, error) {
					clear(f.known)
					var errs []error
					for _, arg := range args {
						id, err := strconv.ParseUint(arg, 10, 16)
						word, bit := bpf.IdentityBit(uint32(id))
						f.known[word] |= bit
						errs = append(errs, err)
					}
					return "", errors.Join(errs...)
				})(args)
				return nil, err
			}),
		"kernel/cidr": command("Put an address range past the agent", "prefix number", 2, locked(func(args []string) (string, error) {
			n, err := strconv.ParseUint(args[1], 10, 32)
			f.cidrs[netip.MustParsePrefix(args[0])] = uint32(n)
			return "", err
		})),
		"kernel/clear": command("Clear the maps as another program", "", 0, locked(func([]string) (string, error) {
			clear(f.entries)
			clear(f.cidrs)
			return "", nil
		})),
		"verify": command("Run the verify job now", "", 0, func([]string) (string, error) { return "", l.verify.run(context.Background()) }),
	})
}
