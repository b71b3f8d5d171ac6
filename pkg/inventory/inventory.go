// Package inventory finds everything on this machine that is ours, and removes it.
//
// It asks the kernel and the disk alone, never the agent, so it finds what a crashed one has left. Each kind of object has a
// file and a proof of ownership, those of Documentation/ownership.md; what cannot be proven ours is not listed, and so it is
// never removed. Calls that look at the network do so in the network namespace of the calling thread.
package inventory

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/rtnl"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tc"
)

// Paths say where the agent keeps things: its flags of the same names. All are absolute.
type Paths struct {
	settings.Agent // StateDir, BPFRoot and Procfs are read

	LibDir        string
	CNIConf       string // --write-cni-conf-when-ready
	CNIBinDir     string // of waggle-agent setup
	CNILog        string // empty for none
	Socket        string // empty: in the state directory
	ShellSocket   string // empty: in the state directory
	MonitorSocket string // empty: in the state directory
}

// Object is one thing of ours.
type Object struct {
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	Owner string `json:"owner"`          // the cell or program that makes it
	Proof string `json:"proof"`          // how we know that it is ours
	Note  string `json:"note,omitempty"` // what it is, where the name does not say

	pod    bool         // a pod's network depends on it
	remove func() error // nil: it goes with another one. What is gone already is success
}

func (o Object) String() string { return o.Kind + " " + o.Name }

// kind is one kind of object.
type kind struct {
	name string
	find func(*Machine) ([]Object, error) // what was found is good although there is an error
}

const podLinkKind = "pod-link"

// kinds are in the order of removal, which keeps to this:
//   - no pod is attached any more before anything goes: runtimes lose the configuration first;
//   - pods' links go before what judges their packets: filters, the rule of nftables, maps;
//   - the links that hold the shared blocks go before filters that somebody else's device may still hold;
//   - what needs the record of kernel settings goes before the record, and the locks go last.
func kinds() []kind {
	return []kind{
		{"cni-conf", (*Machine).cniConf},
		{podLinkKind, (*Machine).podLinks},
		{"address", (*Machine).addresses},
		{"clsact", (*Machine).clsacts},
		{"link", (*Machine).pairs},
		{"tunnel", (*Machine).tunnel},
		{"filter", (*Machine).filters},
		{"route", (*Machine).routes},
		{"rule", (*Machine).rules},
		{"nft-table", (*Machine).nftTable},
		{"pin", (*Machine).pins},
		{"mount", (*Machine).mount},
		{"sysctl", (*Machine).sysctls},
		{"cni-conf-aside", (*Machine).cniConfAside},
		{"cni-plugin", (*Machine).cniPlugin},
		{"file", (*Machine).files},
		{"directory", (*Machine).directories},
	}
}

// Machine is what is looked at.
type Machine struct {
	paths   Paths
	netlink *rtnl.Handle
	traffic *tc.Handle
	links   func() ([]netlink.Link, error) // of netlink; tests have others
}

// Open opens the network namespace of the calling thread. Nothing is changed by it.
func Open(p Paths) (*Machine, error) {
	handle, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	traffic, err := tc.Open()
	if err != nil {
		handle.Close()
		return nil, err
	}
	return &Machine{p, handle, traffic, handle.Links}, nil
}

// Close ends the machine.
func (m *Machine) Close() {
	m.netlink.Close()
	m.traffic.Close()
}

// List finds all objects, in the order in which [Machine.Cleanup] removes them. What was found is good although there is an
// error, which joins those of all kinds.
func (m *Machine) List() (all []Object, err error) {
	var errs []error
	for _, k := range kinds() {
		found, err := m.find(k)
		all, errs = append(all, found...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

func (m *Machine) find(k kind) ([]Object, error) {
	found, err := k.find(m)
	for i := range found {
		found[i].Kind = k.name
	}
	if err != nil {
		err = fmt.Errorf("look for %s objects: %w", k.name, err)
	}
	return found, err
}
