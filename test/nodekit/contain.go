package nodekit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/testnet"
)

// insideEnv marks the process that [Contain] has started; lifeline is the descriptor of the read end of a pipe from the outer process.
const (
	insideEnv = "NODEKIT_INSIDE"
	lifeline  = 3
)

// groupEnv contains the control group below which nodes create theirs.
const (
	groupEnv    = "NODEKIT_CGROUP"
	groupPrefix = "waggle-nodekit"
)

// private is a folder for temporary files that is empty in the inner process: every machine has the folder, and no test reads it.
const private = "/run"

// Contain starts the running program again as the first process of a PID namespace with its own mounts. In the inner process, Contain calls work and exits.
// In the outer process, it returns the exit code of the inner one. When the inner process ends, the kernel kills all its descendants and removes their
// namespaces and temporary files. The inner process ends with the outer one. So even SIGKILL of either leaves no resources. Control groups do not end with a
// namespace: the outer process removes them, or the inner one if the outer one was killed, or else the next call.
func Contain(work func() int) int {
	var err error
	if os.Getenv(insideEnv) != "" {
		if err = settleInside(); err == nil {
			os.Exit(work())
		}
	} else {
		var code int
		if code, err = startInside(); err == nil {
			return code
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func startInside() (code int, err error) {
	// Only this process has the write end: the pipe closes when this process ends.
	read, write, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer write.Close()
	group, err := makeGroup()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, group.Close()) }()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideEnv+"=1", "TMPDIR="+private, groupEnv+"="+group.Path)
	cmd.ExtraFiles = []*os.File{read} // becomes descriptor lifeline
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer signal.Stop(signals)
	err = cmd.Start()
	_ = read.Close()
	if err != nil {
		return 0, fmt.Errorf("start %s in namespaces of its own: %w (are you root, with CAP_SYS_ADMIN?)", os.Args[0], err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s) // an ended process is reported below
		case err := <-ended:
			if cmd.ProcessState.Exited() {
				return cmd.ProcessState.ExitCode(), nil
			}
			return 0, fmt.Errorf("%s was ended: %w", os.Args[0], err)
		}
	}
}

func makeGroup() (*testnet.Cgroup, error) {
	if err := testnet.RemoveStaleCgroups(groupPrefix); err != nil {
		return nil, err
	}
	return testnet.MakeCgroup("", groupPrefix)
}

// settleInside mounts the file systems of the inner process and ends the process when the outer one ends.
func settleInside() error {
	unix.CloseOnExec(lifeline)
	go func() {
		_, _ = io.Copy(io.Discard, os.NewFile(lifeline, "lifeline"))
		_ = unix.Kill(-1, unix.SIGKILL)               // all other processes of this namespace
		_ = testnet.RemoveCgroup(os.Getenv(groupEnv)) // the error has no reader
		os.Exit(1)                                    // ends all processes of the namespace, because this is the first one
	}()
	if err := os.Unsetenv(insideEnv); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make all mounts private: %w", err)
	}
	// /proc must show the process ids of this PID namespace.
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", private, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs at %s: %w", private, err)
	}
	return nil
}
