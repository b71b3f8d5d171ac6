package setup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/capabilities"
	"github.com/waggle-net/waggle/pkg/datapath/bpffs"
)

// Options configure the paths and the mode of setup.
type Options struct {
	BPFRoot    string // mount point of the BPF file system
	StateDir   string // state directory of the agent
	SocketPath string // socket of the agent's API
	PluginPath string // plugin to install
	CNIBinDir  string // directory in which runtimes look for plugins
	CNIConf    string // file that the agent writes for runtimes; empty for none
	HostRoot   string // root directory of the host, as this program sees it, for reading the runtimes' configurations
	LogFile    string // log file of the plugin; empty for none
	Once       bool   // return after the self-test instead of waiting for the end of ctx
}

const (
	retryMin = time.Second
	retryMax = 30 * time.Second
)

// Run performs all steps. It returns when ctx ends, or with Once after the self-test; an error means that a step before the self-test failed, or with Once
// that the self-test failed.
func Run(ctx context.Context, log *slog.Logger, o Options) error {
	unlock, err := lock(o.StateDir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := prepare(log, o); err != nil {
		return err
	}
	if err := test(ctx, log, o, checkFolders(log, o)); err != nil {
		return err
	}
	if ctx.Err() != nil || o.Once {
		return nil
	}
	if err := capabilities.Drop(0); err != nil {
		return fmt.Errorf("drop all capabilities: %w", err)
	}
	log.Info("Setup completed; waiting for a signal")
	<-ctx.Done()
	return nil
}

// prepare performs the steps that the agent needs before it starts.
func prepare(log *slog.Logger, o Options) error {
	mounted, err := bpffs.Ensure(o.BPFRoot)
	if err != nil {
		return err
	}
	log.Info("BPF file system is mounted", "root", o.BPFRoot, "mountedNow", mounted)
	target := filepath.Join(o.CNIBinDir, PluginName)
	installed, err := install(o.PluginPath, target)
	if err != nil {
		return err
	}
	log.Info("CNI plugin is installed", "path", target, "wroteNow", installed)
	if why := loopbackMissing(o.CNIBinDir); why != "" {
		log.Warn(why)
	}
	return nil
}

// checkFolders returns the reason why the container runtime may not find the installed files; empty if it finds them. It unmounts a mount below
// --host-root, which has no other use and may hold keys.
func checkFolders(log *slog.Logger, o Options) string {
	confDir := ""
	if o.CNIConf != "" {
		confDir = filepath.Dir(o.CNIConf)
	}
	wrong := wrongFolders(o.HostRoot, o.CNIBinDir, confDir)
	if wrong != "" {
		log.Warn("The container runtime may not find the CNI plugin", "why", wrong)
	}
	if mount := filepath.Join(o.HostRoot, "etc"); filepath.Clean(o.HostRoot) != "/" {
		if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // EINVAL: not a mount
			log.Warn("The directory of the host stays mounted", "path", mount, "error", err)
		}
	}
	return wrong
}

// Prepared returns nil if the steps before the agent's start are done, and an error otherwise. It changes nothing.
func Prepared(o Options) error {
	if is, err := bpffs.Is(o.BPFRoot); err != nil {
		return err
	} else if !is {
		return fmt.Errorf("no BPF file system is mounted on %s", o.BPFRoot)
	}
	target := filepath.Join(o.CNIBinDir, PluginName)
	same, err := equal(o.PluginPath, target)
	if err == nil && !same {
		err = fmt.Errorf("%s is not the plugin of %s", target, o.PluginPath)
	}
	return err
}

// test retries until the self-test passes, and reports each outcome, together with the fault of the runtime's folders.
func test(ctx context.Context, log *slog.Logger, o Options, folders string) error {
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		err := attempt(ctx, log, o, folders)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		log.Error("The self-test failed", "error", err, "retryIn", wait)
		if o.Once {
			return fmt.Errorf("self-test: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}
