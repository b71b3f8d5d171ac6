package main

import (
	"log/slog"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/capabilities"
	"github.com/waggle-net/waggle/pkg/config"
)

// needed returns the capabilities that the agent keeps.
func (a *agent) needed() capabilities.Set {
	keep := capabilities.Agent
	if probes, err := a.flags.GetBool("enable-health-checking"); err == nil && probes {
		keep |= capabilities.Probes
	}
	for _, flag := range []string{"bpf-lb-sock-terminate-pod-connections", "enable-pod-mtu-updates"} {
		if pods, err := a.flags.GetBool(flag); err == nil && pods {
			keep |= capabilities.Namespaces
		}
	}
	return keep
}

// boundCapabilities limits the bounding set, so that no child process can get more capabilities than the agent needs.
func (a *agent) boundCapabilities(log *slog.Logger) {
	if a.role == config.RoleCluster {
		return // the agent was started without capabilities
	}
	if err := capabilities.Bound(a.needed()); err != nil {
		log.Warn("The agent keeps capabilities in its bounding set", "error", err)
	}
}

// dropCapabilities drops the capabilities that only start hooks need, such as the ones to mount the BPF file system and to set a socket's group. It is
// invoked after all cells, so its hook runs last. In a container that has only the needed capabilities, the hook changes nothing.
func (a *agent) dropCapabilities(lifecycle cell.Lifecycle, log *slog.Logger) {
	lifecycle.Append(cell.Hook{OnStart: func(cell.HookContext) error {
		before, err := capabilities.Effective()
		if err != nil {
			return err
		}
		needed := a.needed()
		if err := capabilities.Drop(needed); err != nil {
			log.Warn("The agent keeps capabilities that it does not need", "error", err)
		}
		after, err := capabilities.Effective()
		if missing := needed &^ after; err == nil && missing != 0 {
			log.Warn("The agent lacks capabilities; the kernel will reject some operations", "missing", missing)
		}
		if err == nil && before != after {
			log.Info("Dropped capabilities", "kept", after)
		}
		return err
	}})
}
