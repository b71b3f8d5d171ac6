package kube

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	insideEnv = "WAGGLE_KUBE_INSIDE" // holds the name of the cgroups in the inner process
	lifeline  = 3                    // descriptor of the inner process for the read end of a pipe from the outer process
	stateRoot = "/run"               // parent folder of the clusters' files: a tmpfs in the private mount namespace
)

// Main runs the tests of a package with [Contain] and exits.
func Main(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "tests of a real Kubernetes make namespaces, mounts and cgroups: run them as root")
		os.Exit(1)
	}
	os.Exit(Contain(m.Run))
}

// Contain starts the running program again as the first process of a PID namespace with its own mounts. In the inner process, Contain calls work and exits.
// In the outer process, it returns the exit code of the inner one.
//
// No resources remain after either process ends:
//
//   - processes, network namespaces and mounts end with the PID namespace, which the kernel ends with its first process;
//     the first process ends when its pipe to the outer process is closed
//   - files are on a tmpfs among the private mounts
//   - cgroups are removed by the outer process, or by the inner one if the outer one was killed. If both were killed
//     simultaneously, the next call removes the cgroups.
func Contain(work func() int) int {
	var err error
	if name := os.Getenv(insideEnv); name != "" && os.Getpid() == 1 {
		if err = settleInside(name); err == nil {
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
	removeStaleCgroups()
	name := cgroupName()
	defer func() { err = errors.Join(err, removeCgroups(name)) }()
	// Only this process has the write end: the pipe closes when this process ends.
	read, write, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer write.Close()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideEnv+"="+name)
	cmd.ExtraFiles = []*os.File{read} // becomes descriptor lifeline
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	account, err := newAccount(name)
	if err != nil {
		return 0, err
	}
	defer account.close()
	account.attach(cmd.SysProcAttr)
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
			_ = cmd.Process.Signal(s) // cmd.Wait below reports a process that has already ended
		case err := <-ended:
			fmt.Fprintln(os.Stderr, account.text(os.Args[0]))
			if cmd.ProcessState.Exited() {
				return cmd.ProcessState.ExitCode(), nil
			}
			return 0, fmt.Errorf("%s was ended: %w", os.Args[0], err)
		}
	}
}

// settleInside mounts the file systems of the inner process and ends the process when the outer one ends.
func settleInside(cgroup string) error {
	unix.CloseOnExec(lifeline)
	go func() {
		_, _ = io.Copy(io.Discard, os.NewFile(lifeline, "lifeline"))
		_ = unix.Kill(-1, unix.SIGKILL) // all other processes of this PID namespace and of nested ones
		_ = leaveAccount()              // the error has no reader: the outer process is gone
		_ = removeCgroups(cgroup)
		os.Exit(1)
	}()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make all mounts private: %w", err)
	}
	// /proc must show the process ids of this PID namespace.
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", stateRoot, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs at %s: %w", stateRoot, err)
	}
	return nil
}

// cgroupName returns a name that is unique among all processes, including processes of other PID namespaces.
func cgroupName() string { return fmt.Sprintf("waggle-kube-%d-%d", os.Getpid(), time.Now().UnixNano()) }

// retry calls f until it returns nil or limit has elapsed.
func retry(limit time.Duration, f func() error) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		if err := f(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
