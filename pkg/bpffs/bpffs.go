// Package bpffs makes sure that the BPF file system is there to pin maps and links in, and knows afterwards whether it was
// mounted by us: the kernel keeps that in the source of the mount.
package bpffs

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Ensure mounts a BPF file system on root unless one is there, and tells whether it did. A directory on the way that is
// missing is made. What lies under root in another file system stays, hidden until the mount goes.
func Ensure(root string) (mounted bool, err error) {
	is, err := Is(root)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	if is {
		return false, nil
	}
	source := sourceMounted
	if errors.Is(err, os.ErrNotExist) {
		source = sourceMade
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return false, fmt.Errorf("make mount point of the BPF file system: %w", err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RELATIME
	if err := unix.Mount(source, root, "bpf", flags, "mode=0700"); err != nil {
		return false, fmt.Errorf("mount BPF file system on %s: %w (%s)", root, err, remedy(err, root))
	}
	return true, nil
}

// Is tells whether root lies in a BPF file system.
func Is(root string) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return false, fmt.Errorf("look at file system of %s: %w", root, err)
	}
	return fs.Type == unix.BPF_FS_MAGIC, nil
}

// remedy says what the reader can do about a failed mount.
func remedy(err error, root string) string {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return "start the agent with CAP_SYS_ADMIN, or mount it for the agent: mount -t bpf bpffs " + root
	case errors.Is(err, unix.ENODEV):
		return "the kernel has no BPF file system: use one with CONFIG_BPF_SYSCALL"
	}
	return "choose another mount point with --bpf-root, or mount it for the agent: mount -t bpf bpffs " + root
}
