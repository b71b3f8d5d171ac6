package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/config"
	"github.com/waggle-net/waggle/pkg/install"
	"github.com/waggle-net/waggle/pkg/inventory"
)

// pathFlags lists the agent's path options, with their help texts for this command.
var pathFlags = []struct{ name, usage string }{
	{config.DirFlag, "Directory with one file for each option of the agent, as the agent's"},
	{"state-dir", "As the agent's"},
	{"lib-dir", "As the agent's"},
	{"bpf-root", "As the agent's"},
	{"procfs", "As the agent's"},
	{"write-cni-conf-when-ready", "As the agent's (default " + defaultCNIConf() + ")"},
	{"cni-log-file", "As the agent's"},
	{"socket-path", "As the agent's"},
	{"shell-socket-path", "As the agent's"},
	{"monitor-socket-path", "As the agent's"},
}

const cniBinDirFlag = "cni-bin-dir"

func defaultCNIConf() string { return install.Defaults()["write-cni-conf-when-ready"] }

// withPaths adds the agent's path flags with the agent's defaults.
func withPaths(cmd *cobra.Command) *cobra.Command {
	defaults, err := install.AgentFlags()
	if err != nil {
		panic(err) // the list is part of the program
	}
	for _, f := range pathFlags {
		cmd.Flags().String(f.name, defaults.Lookup(f.name).DefValue, f.usage)
	}
	cmd.Flags().String(cniBinDirFlag, "/opt/cni/bin", "Directory in which container runtimes look for CNI plugins")
	return cmd
}

// machine opens this machine with the paths from the command line, the environment and the configuration directory.
func machine(cmd *cobra.Command) (*inventory.Machine, error) {
	paths, err := readPaths(cmd.Flags(), os.Environ())
	if err != nil {
		return nil, usage{err}
	}
	return inventory.Open(paths)
}

// readPaths resolves the values with the agent's precedence.
func readPaths(typed *pflag.FlagSet, environ []string) (p inventory.Paths, err error) {
	flags, err := install.AgentFlags()
	if err != nil {
		return p, err
	}
	config.AddForeign(flags)
	for _, f := range pathFlags {
		if given := typed.Lookup(f.name); given.Changed {
			if err := flags.Set(f.name, given.Value.String()); err != nil {
				return p, err
			}
		}
	}
	if _, err := config.Load(flags, environ); err != nil {
		return p, err
	}
	value := func(name string) string { return flags.Lookup(name).Value.String() }
	p = inventory.Paths{
		Agent:  agentconfig.Agent{StateDir: value("state-dir"), BPFRoot: value("bpf-root"), Procfs: value("procfs")},
		LibDir: value("lib-dir"), CNIConf: value("write-cni-conf-when-ready"), CNIBinDir: typed.Lookup(cniBinDirFlag).Value.String(),
		CNILog: value("cni-log-file"), Socket: value("socket-path"), ShellSocket: value("shell-socket-path"),
		MonitorSocket: value("monitor-socket-path"),
	}
	if p.CNIConf == "" {
		p.CNIConf = defaultCNIConf() // the agent writes no file, but a previous run may have written this one
	}
	return p, clean(map[string]*string{"state-dir": &p.StateDir, "bpf-root": &p.BPFRoot, "procfs": &p.Procfs, "lib-dir": &p.LibDir,
		"write-cni-conf-when-ready": &p.CNIConf, cniBinDirFlag: &p.CNIBinDir, "cni-log-file": &p.CNILog, "socket-path": &p.Socket,
		"shell-socket-path": &p.ShellSocket, "monitor-socket-path": &p.MonitorSocket})
}

// clean requires that each path is absolute, or empty if the option permits that, and normalizes it.
func clean(paths map[string]*string) error {
	optional := []string{"cni-log-file", "socket-path", "shell-socket-path", "monitor-socket-path"}
	for name, path := range paths {
		if *path == "" && slices.Contains(optional, name) {
			continue
		}
		if !filepath.IsAbs(*path) {
			return fmt.Errorf("--%s=%q: must be an absolute path", name, *path)
		}
		*path = filepath.Clean(*path)
	}
	return nil
}
