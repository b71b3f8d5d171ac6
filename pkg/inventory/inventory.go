// Package inventory finds and removes all objects of Waggle on this machine.
//
// It reads only the kernel and the disk and does not contact the agent, so it also finds the objects of a crashed agent. Each kind of object has a
// source file and a proof of ownership, as in Documentation/ownership.md. Objects without proof are neither listed nor removed. Calls that read the
// network state use the network namespace of the calling thread.
package inventory

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/datapath/tc"
)

// Paths are the paths of the agent's files: its flags of the same names. All are absolute.
type Paths struct {
	agentconfig.Agent // uses StateDir, BPFRoot and Procfs

	LibDir        string
	CNIConf       string // --write-cni-conf-when-ready
	CNIBinDir     string // of waggle-agent setup
	CNILog        string // empty for none
	Socket        string // empty: in the state directory
	ShellSocket   string // empty: in the state directory
	MonitorSocket string // empty: in the state directory
}

// Object is one object of Waggle.
type Object struct {
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	Owner string `json:"owner"`          // the cell or program that creates it
	Proof string `json:"proof"`          // evidence of ownership
	Note  string `json:"note,omitempty"` // description, if the name does not suffice

	pod    bool         // a pod's network depends on it
	remove func() error // nil: it is removed with another object. An object that no longer exists is a success
}

func (o Object) String() string { return o.Kind + " " + o.Name }

// kind is one kind of object.
type kind struct {
	name string
	find func(*Machine) ([]Object, error) // the result is valid even with an error
}

const podLinkKind = "pod-link"

// kinds returns the kinds in the order of removal:
//   - no pod can be attached any longer before the first object is removed: the CNI configuration is the first;
//   - pods' links are removed before the filters, nftables rules and maps that evaluate their packets;
//   - the links that hold the shared blocks are removed before filters that a foreign device may still hold;
//   - objects that need the record of kernel settings are removed before the record, and the locks are the last.
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
		{"cni-conf-aside", (*Machine).cniConfRenamed},
		{"cni-plugin", (*Machine).cniPlugin},
		{"file", (*Machine).files},
		{"directory", (*Machine).directories},
	}
}

// Machine is the machine whose objects are listed.
type Machine struct {
	paths   Paths
	netlink *rtnl.Handle
	traffic *tc.Handle
	links   func() ([]netlink.Link, error) // from netlink; tests replace it
}

// Open opens the network namespace of the calling thread. It changes nothing.
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

// Close releases the machine.
func (m *Machine) Close() {
	m.netlink.Close()
	m.traffic.Close()
}

// List returns all objects, in the order in which [Machine.Cleanup] removes them. The result is valid even with an error, which joins the errors of all
// kinds.
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
		err = fmt.Errorf("list %s objects: %w", k.name, err)
	}
	return found, err
}
