package nodekit

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/bpffs"
)

// containerCapabilities are the capabilities of the DaemonSet's main container.
const containerCapabilities = "-all,+net_admin,+net_raw,+bpf,+perfmon"

// reduce gives the agent the environment that container runtimes and the init container provide: the BPF file system is mounted, the root is read-only,
// /proc/sys too while --procfs names a writable one, and the command has the capabilities of the container, plus one with the flag that needs it. The mounts
// are changed in the agent's own mount namespace, so the plugin keeps the node's mounts.
func (n *Node) reduce(command []string) ([]string, error) {
	err := n.Do(func() error {
		if _, err := bpffs.Ensure(n.BPFRoot()); err != nil {
			return err
		}
		for _, dir := range []string{n.StateDir(), n.hostProc()} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		var fs unix.Statfs_t
		if err := unix.Statfs(n.hostProc(), &fs); err != nil || fs.Type == unix.PROC_SUPER_MAGIC {
			return err
		}
		return unix.Mount("/proc", n.hostProc(), "", unix.MS_BIND, "")
	})
	// The node's folder is below /run, a separate file system, which stays writable.
	const script = `mount -o bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && mount -o remount,bind,ro / && exec "$@"`
	capabilities := containerCapabilities
	if slices.Contains(command, "--bpf-lb-sock-terminate-pod-connections") {
		capabilities += ",+sys_admin"
	}
	reduced := []string{"unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh",
		"setpriv", "--bounding-set=" + capabilities, "--inh-caps=-all", "--no-new-privs"}
	return append(append(reduced, command...), "--procfs="+n.hostProc()), err
}

func (n *Node) hostProc() string { return n.path("proc") }
