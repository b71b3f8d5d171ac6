// Package bpffs ensures that a BPF file system for pinned maps and links is mounted, and reports whether Waggle mounted it. The mount source records that.
package bpffs

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Ensure mounts a BPF file system on root unless root already lies in one, and reports whether it mounted one. It creates missing directories on the path.
// Files below root in another file system are hidden until the unmount.
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
		source = sourceCreated
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return false, fmt.Errorf("create mount point of the BPF file system: %w", err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RELATIME
	if err := unix.Mount(source, root, "bpf", flags, "mode=0700"); err != nil {
		return false, fmt.Errorf("mount BPF file system on %s: %w (%s)", root, err, remedy(err, root))
	}
	return true, nil
}

// Is reports whether root lies in a BPF file system.
func Is(root string) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return false, fmt.Errorf("stat file system of %s: %w", root, err)
	}
	return fs.Type == unix.BPF_FS_MAGIC, nil
}

// remedy returns the operator's remedy for a failed mount.
func remedy(err error, root string) string {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return "start the agent with CAP_SYS_ADMIN, or mount it for the agent: mount -t bpf bpffs " + root
	case errors.Is(err, unix.ENODEV):
		return "the kernel has no BPF file system: use one with CONFIG_BPF_SYSCALL"
	}
	return "choose another mount point with --bpf-root, or mount it for the agent: mount -t bpf bpffs " + root
}
