package node_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// shortageEnv is the environment variable with the path of a socket. It makes a test program start an agent whose creations of BPF maps the listener on the
// socket allows or denies.
const shortageEnv = "NODE_TEST_SHORTAGE"

// shortage decides whether the kernel has memory for the BPF maps of a node's agents. It is the supervisor of a seccomp filter (seccomp_unotify(2)), so an
// agent gets the error of the kernel while the test sets on.
type shortage struct {
	on     atomic.Bool
	denied atomic.Int64 // denied maps
}

// withShortage supervises the node's next agents. There is no shortage at first.
func withShortage(t *testing.T, node *nodekit.Node) *shortage {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket, script := filepath.Join(node.Dir, "shortage"), filepath.Join(node.Dir, "supervised-agent")
	text := fmt.Sprintf("#!/bin/sh\n%s=%s exec %s %s/waggle-agent \"$@\"\n", shortageEnv, socket, self, binDir)
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	s := &shortage{}
	go func() {
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			go func() {
				if err := s.supervise(conn); err != nil {
					t.Errorf("supervise an agent: %v", err)
				}
			}()
		}
	}()
	node.UseAgent(script)
	return s
}

// shortageMain is the main function of a supervised agent until exec of the agent; it returns only an error.
func shortageMain() error {
	runtime.LockOSThread() // the filter belongs to this thread, and exec keeps it
	const number, command = 0, 16
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_BPF, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: command},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.BPF_MAP_CREATE, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
		uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("install the filter: %w", errno)
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: os.Getenv(shortageEnv), Net: "unix"})
	if err != nil {
		return err
	}
	if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(int(fd)), nil); err != nil {
		return err
	}
	unix.CloseOnExec(int(fd))
	if err := os.Unsetenv(shortageEnv); err != nil {
		return err
	}
	return syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
}

// notification and answer are struct seccomp_notif and struct seccomp_notif_resp.
type (
	notification struct {
		ID         uint64
		PID, Flags uint32
		_          [64]byte // of the call
	}
	answer struct {
		ID    uint64
		Value int64
		Errno int32
		Flags uint32
	}
)

// supervise decides for one agent until the agent ends.
func (s *shortage) supervise(conn *net.UnixConn) error {
	defer conn.Close()
	oob := make([]byte, 64)
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return fmt.Errorf("%d messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return err
	}
	defer unix.Close(fds[0])
	for {
		poll := []unix.PollFd{{Fd: int32(fds[0]), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return err
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			return nil // the agent has ended
		}
		var asked notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fds[0]), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&asked))); errno != 0 {
			continue // the calling thread was killed
		}
		reply := answer{ID: asked.ID, Flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if s.on.Load() {
			s.denied.Add(1)
			reply.Flags, reply.Errno = 0, -int32(unix.ENOMEM)
		}
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(fds[0]), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&reply)))
	}
}
