package cni

import (
	"fmt"
	"os"
	"runtime"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// podNamespace is the open network namespace of a pod.
type podNamespace struct {
	path  string
	file  *os.File
	inode uint64
}

// openNamespace opens the namespace in CNI_NETNS. It rejects other files and the plugin's own namespace.
func openNamespace(path string) (*podNamespace, *types.Error) {
	const remedy = "the pod's sandbox no longer exists or its path is wrong; the runtime must create a new one"
	// Without O_NONBLOCK, opening a named pipe at this path would block indefinitely.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, failure(types.ErrInvalidNetNS, fmt.Errorf("CNI_NETNS: open %.200q: %w", path, err), remedy)
	}
	ns := &podNamespace{path: path, file: os.NewFile(uintptr(fd), path)}
	fail := func(format string, args ...any) (*podNamespace, *types.Error) {
		_ = ns.file.Close()
		return nil, failure(types.ErrInvalidNetNS, fmt.Errorf("CNI_NETNS: "+format, args...), remedy)
	}
	if kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		return fail("%.200q: is not a network namespace", path)
	}
	var pod, own unix.Stat_t
	if err := unix.Fstat(fd, &pod); err != nil {
		return fail("stat %.200q: %w", path, err)
	}
	if err := unix.Stat("/proc/thread-self/ns/net", &own); err != nil {
		return fail("stat the namespace of the plugin: %w", err)
	}
	if pod.Dev == own.Dev && pod.Ino == own.Ino {
		return fail("%.200q: is the namespace of the plugin itself", path)
	}
	ns.inode = pod.Ino
	return ns, nil
}

func (ns *podNamespace) Close() { _ = ns.file.Close() }

// do runs f on a thread inside the namespace. The thread ends with f, so that no other goroutine ever runs there.
func (ns *podNamespace) do(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("enter network namespace %s: %w", ns.path, err)
			return
		}
		result <- f()
	}()
	return <-result
}

// cookie returns the cookie of the calling thread's network namespace, or 0 if the kernel does not provide one.
func cookie() uint64 {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	n, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return n
}
