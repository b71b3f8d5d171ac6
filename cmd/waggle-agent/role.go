package main

import (
	"fmt"
	"path/filepath"

	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/daemon"
	"github.com/waggle-net/waggle/pkg/config"
	"github.com/waggle-net/waggle/pkg/hive"
)

// roles are the cells of each role.
func roles() map[string]cell.Cell {
	return map[string]cell.Cell{config.RoleNode: daemon.Agent, config.RoleCluster: daemon.Cluster}
}

// build makes the hive of the role that is asked for. Every hive is made, and all but one dropped, to know the flags of each.
func (a *agent) build(args []string) error {
	sets, all := map[string]*pflag.FlagSet{}, pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(all)
	addStopFlag(all)
	for role, cells := range roles() {
		h, err := hive.Build(cells)
		if err != nil {
			return err
		}
		sets[role] = pflag.NewFlagSet("", pflag.ContinueOnError)
		h.RegisterFlags(sets[role])
		all.AddFlagSet(sets[role])
	}
	var err error
	if a.role, err = config.FindRole(all, args, a.environ); err != nil {
		return err
	}
	a.flags = pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(a.flags)
	addStopFlag(a.flags)
	if a.hive, err = hive.Build(roles()[a.role], a.outside()); err != nil {
		return err
	}
	a.hive.RegisterFlags(a.flags)
	for role, set := range sets {
		config.AddOtherRole(a.flags, set, role)
	}
	config.AddForeign(a.flags)
	return nil
}

// checkRole ends a start whose command line is so odd that the role was not found where it stood.
func (a *agent) checkRole() error {
	if role := a.flags.Lookup(config.RoleFlag).Value.String(); role != a.role {
		return fmt.Errorf("--%s=%s was taken for the value of another option: write --option=value", config.RoleFlag, role)
	}
	return nil
}

// checkProtection ends the start of the agent of a node that would not protect what the options require. The cluster role, which reads the same ConfigMap,
// protects nothing in Cilium either.
func (a *agent) checkProtection() error {
	accepted, err := a.flags.GetStringSlice(config.AcceptFlag)
	if err != nil || a.role == config.RoleCluster {
		return err
	}
	return a.config.CheckProtection(accepted)
}

// short describes the command in its role.
func (a *agent) short() string {
	if a.role == config.RoleCluster {
		return "Work for the whole cluster, as one of several replicas"
	}
	return "Run the node networking agent"
}

// lock keeps two agents of a node apart. The cluster role has no state, and a Lease does that for it.
func (a *agent) lock() (unlock func(), err error) {
	if a.role == config.RoleCluster {
		return func() {}, nil
	}
	stateDir, err := a.flags.GetString("state-dir")
	if err != nil {
		return nil, err
	}
	return lockStateDir(filepath.Clean(stateDir))
}
