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

// insideEnv marks the process that [Contain] has started; lifeline is its end of a pipe from the process outside.
const (
	insideEnv = "NODEKIT_INSIDE"
	lifeline  = 3
)

// groupEnv names the control group below which nodes make theirs.
const (
	groupEnv    = "NODEKIT_CGROUP"
	groupPrefix = "waggle-nodekit"
)

// private is the folder that is empty inside and takes temporary files: every machine has it, and no test reads it.
const private = "/run"

// Contain starts the running program once more, as the first process of a PID namespace and with mounts of its own; there
// Contain calls work and exits. Outside it returns the exit code of the process inside. When that process ends, for
// whatever reason, the kernel kills all that it has started and drops their namespaces and temporary files; and it ends
// when the process outside does. So even SIGKILL of either leaves nothing behind. Control groups, which no namespace ends, are
// removed by the process outside; when that was killed, by the one inside, or if need be by the next call.
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
	// Nobody else has the writing end: it closes when this process is gone.
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
	cmd.ExtraFiles = []*os.File{read} // becomes the descriptor lifeline
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
			_ = cmd.Process.Signal(s) // that it has ended is reported below
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

// settleInside gives this process the mounts it expects and ends it when the one outside ends.
func settleInside() error {
	unix.CloseOnExec(lifeline)
	go func() {
		_, _ = io.Copy(io.Discard, os.NewFile(lifeline, "lifeline"))
		_ = unix.Kill(-1, unix.SIGKILL)               // all others of this namespace
		_ = testnet.RemoveCgroup(os.Getenv(groupEnv)) // nobody is left to read an error
		os.Exit(1)                                    // as the first process of the namespace it takes all others along
	}()
	if err := os.Unsetenv(insideEnv); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make all mounts private: %w", err)
	}
	// The numbers of processes that /proc shows must be those of this namespace.
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", private, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs at %s: %w", private, err)
	}
	return nil
}
