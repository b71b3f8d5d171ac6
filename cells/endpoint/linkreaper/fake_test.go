package linkreaper

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cilium/hive"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/devices"
)

// fakeKernel is a [kernel] with state. It copies its links to the table devices.
type fakeKernel struct {
	db      *statedb.DB
	devices statedb.RWTable[*devices.Device]

	mu       sync.Mutex
	links    map[int]*devices.Device
	fail     int      // number of the next deletions that fail
	requests []string // requested deletions
}

func newFakeKernel(db *statedb.DB, table statedb.RWTable[*devices.Device]) *fakeKernel {
	return &fakeKernel{db: db, devices: table, links: map[int]*devices.Device{}}
}

func (k *fakeKernel) Members(group uint32) ([]member, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var members []member
	for _, l := range k.links {
		if l.Group == group {
			members = append(members, member{l.Index, l.Name, l.Type})
		}
	}
	slices.SortFunc(members, func(a, b member) int { return a.Index - b.Index })
	return members, nil
}

func (k *fakeKernel) Member(group uint32, index int) ([]member, error) {
	members, err := k.Members(group)
	return slices.DeleteFunc(members, func(m member) bool { return m.Index != index }), err
}

func (k *fakeKernel) DeleteGroup(group uint32) error {
	return k.delete("group", func(l *devices.Device) bool { return l.Group == group })
}

func (k *fakeKernel) DeleteLink(index int) error {
	return k.delete("link "+strconv.Itoa(index), func(l *devices.Device) bool { return l.Index == index })
}

func (k *fakeKernel) delete(request string, which func(*devices.Device) bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.requests = append(k.requests, request)
	if k.fail > 0 {
		k.fail--
		return errors.New("netlink is tired")
	}
	txn := k.db.WriteTxn(k.devices)
	defer txn.Commit()
	for index, l := range k.links {
		if which(l) {
			delete(k.links, index)
			_, _, _ = k.devices.Delete(txn, l)
		}
	}
	return nil
}

// set adds links in one transaction; each is "index,name,type,group" and may end in ",up".
func (k *fakeKernel) set(specs []string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	txn := k.db.WriteTxn(k.devices)
	defer txn.Commit()
	for _, spec := range specs {
		f := strings.Split(spec, ",")
		index, err := strconv.Atoi(f[0])
		if err != nil {
			return err
		}
		group, err := strconv.ParseUint(f[3], 0, 32)
		if err != nil {
			return err
		}
		d := &devices.Device{Index: index, Name: f[1], Type: f[2], Group: uint32(group), Up: len(f) > 4 && f[4] == "up"}
		k.links[index] = d
		if _, _, err := k.devices.Insert(txn, d); err != nil {
			return err
		}
	}
	return nil
}

func (k *fakeKernel) commands() hive.ScriptCmdsOut {
	return hive.NewScriptCmds(map[string]script.Cmd{
		"links": script.Command(script.CmdUsage{Summary: "add links", Args: "index,name,type,group[,up]..."},
			func(_ *script.State, args ...string) (script.WaitFunc, error) { return nil, k.set(args) }),
		"fail": script.Command(script.CmdUsage{Summary: "make the next deletions fail", Args: "count"},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				k.mu.Lock()
				defer k.mu.Unlock()
				var err error
				k.fail, err = strconv.Atoi(args[0])
				return nil, err
			}),
		"kernel": script.Command(script.CmdUsage{Summary: "print links and requests"},
			func(*script.State, ...string) (script.WaitFunc, error) {
				k.mu.Lock()
				defer k.mu.Unlock()
				var out strings.Builder
				for _, index := range slices.Sorted(maps.Keys(k.links)) {
					fmt.Fprintln(&out, k.links[index].Name)
				}
				fmt.Fprintln(&out, "requests:", strings.Join(k.requests, ", "))
				return func(*script.State) (string, string, error) { return out.String(), "", nil }, nil
			}),
	})
}
