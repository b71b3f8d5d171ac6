package main

import (
	"fmt"
	"path/filepath"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/daemon"
	"github.com/waggle-net/waggle/pkg/config"
	"github.com/waggle-net/waggle/pkg/hive"
)

// roles returns the cells of each role.
func roles() map[string]cell.Cell {
	return map[string]cell.Cell{config.RoleNode: daemon.Agent, config.RoleCluster: daemon.Cluster}
}

// build builds the hive of the selected role. It builds the hives of all roles to collect their flags, and discards the others.
func (a *agent) build(args []string) error {
	hives, sets, all := map[string]*upstream.Hive{}, map[string]*pflag.FlagSet{}, pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(all)
	addStopFlag(all)
	for role, cells := range roles() {
		h, err := hive.Build(cells, a.outside(role))
		if err != nil {
			return err
		}
		hives[role], sets[role] = h, pflag.NewFlagSet("", pflag.ContinueOnError)
		h.RegisterFlags(sets[role])
		all.AddFlagSet(sets[role])
	}
	var err error
	if a.role, err = config.FindRole(all, args, a.environ); err != nil { // it leaves the values of flags unchanged
		return err
	}
	if a.role == config.RoleCluster {
		bpf.EndReadAhead()
	}
	a.hive, a.flags = hives[a.role], pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(a.flags)
	addStopFlag(a.flags)
	a.hive.RegisterFlags(a.flags)
	for role, set := range sets {
		config.AddOtherRole(a.flags, set, role)
	}
	config.AddForeign(a.flags)
	return nil
}

// checkRole returns an error if the parsed role differs from the one that build found in the command line.
func (a *agent) checkRole() error {
	if role := a.flags.Lookup(config.RoleFlag).Value.String(); role != a.role {
		return fmt.Errorf("--%s=%s was parsed as the value of another option: write --option=value", config.RoleFlag, role)
	}
	return nil
}

// checkProtection returns an error if a node's agent would not provide the protection that the options require. The cluster role reads the same ConfigMap and
// is exempt, since it provides no protection in Cilium either.
func (a *agent) checkProtection() error {
	accepted, err := a.flags.GetStringSlice(config.AcceptFlag)
	if err != nil || a.role == config.RoleCluster {
		return err
	}
	return a.config.CheckProtection(accepted)
}

// short returns the short help text of the role.
func (a *agent) short() string {
	if a.role == config.RoleCluster {
		return "Work for the whole cluster, as one of several replicas"
	}
	return "Run the node networking agent"
}

// lock prevents a second agent on the node. The cluster role has no local state and uses a Lease instead.
func (a *agent) lock() (unlock func(), err error) {
	if a.role == config.RoleCluster {
		return func() {}, nil
	}
	stateDir, err := a.flags.GetString("state-dir")
	if err != nil {
		return nil, err
	}
	return lockNode(filepath.Clean(stateDir))
}
