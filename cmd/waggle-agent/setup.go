package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/pkg/setup"
)

// defaultCNIBinDir is the folder in which container runtimes search for plugins.
const defaultCNIBinDir = "/opt/cni/bin"

// setupFlags holds the flags of this command only; the agent's flags set the paths of state and socket.
type setupFlags struct {
	cniBinDir, pluginPath, hostRoot string
	prepared, once                  bool
}

// setupCommand returns the command that prepares the node. It reads the agent's configuration, so that both use the same paths.
func (a *agent) setupCommand() *cobra.Command {
	var f setupFlags
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Mount bpffs, install the CNI plugin, run a self-test once the agent is ready, then wait",
		Long: "Perform the steps that need more privileges than the agent has: mount the BPF file system, install the CNI plugin, and\n" +
			"attach a namespace as a self-test once the agent is ready. Then drop all capabilities and wait for a signal.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.setup(cmd, f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.cniBinDir, "cni-bin-dir", defaultCNIBinDir, "Directory in which container runtimes look for CNI plugins")
	flags.StringVar(&f.pluginPath, "cni-plugin-path", "", "CNI plugin to install; default: waggle-cni beside this program")
	flags.StringVar(&f.hostRoot, "host-root", "/", "Directory with the root of the host, or with its etc alone, from which the directories of the container runtime are read; etc is unmounted afterwards unless this is /")
	flags.BoolVar(&f.prepared, "prepared", false, "Do nothing; exit 0 when bpffs is mounted and the plugin is installed, for a startup probe")
	flags.BoolVar(&f.once, "once", false, "Exit after one self-test; the exit code is its result")
	return cmd
}

func (a *agent) setup(cmd *cobra.Command, f setupFlags) error {
	log, err := a.prepare(cmd)
	if err != nil {
		return err
	}
	options, err := setupOptions(cmd, f)
	if err != nil {
		return err
	}
	if f.prepared {
		return setup.Prepared(options)
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return setup.Run(ctx, log, options)
}

func setupOptions(cmd *cobra.Command, f setupFlags) (o setup.Options, err error) {
	o = setup.Options{PluginPath: f.pluginPath, CNIBinDir: f.cniBinDir, HostRoot: f.hostRoot, Once: f.once}
	for flag, to := range map[string]*string{"state-dir": &o.StateDir, "bpf-root": &o.BPFRoot, "socket-path": &o.SocketPath, "cni-log-file": &o.LogFile,
		"write-cni-conf-when-ready": &o.CNIConf} {
		if *to, err = cmd.Flags().GetString(flag); err != nil {
			return o, err
		}
	}
	if o.PluginPath == "" {
		self, err := os.Executable()
		if err != nil {
			return o, fmt.Errorf("find the CNI plugin beside this program: %w: set its path with --cni-plugin-path", err)
		}
		o.PluginPath = filepath.Join(filepath.Dir(self), "waggle-cni")
	}
	if o.SocketPath == "" {
		o.SocketPath = filepath.Join(o.StateDir, "waggle.sock")
	}
	for flag, path := range map[string]string{"state-dir": o.StateDir, "bpf-root": o.BPFRoot, "socket-path": o.SocketPath, "cni-bin-dir": o.CNIBinDir, "host-root": o.HostRoot} {
		if !filepath.IsAbs(path) {
			return o, fmt.Errorf("--%s=%q: must be an absolute path", flag, path)
		}
	}
	return o, nil
}
