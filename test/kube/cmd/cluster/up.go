package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/waggle-net/waggle/test/kube"
)

// up starts the process that runs the cluster, and waits until that process reports success or an error.
func up(args []string) error {
	if _, err := parse(args); err != nil {
		return err
	}
	if err := prepare(); err != nil {
		return err
	}
	lock, err := takeLock()
	if errors.Is(err, errRunning) {
		fmt.Println("A cluster is running already; make cluster-down removes it.")
		return describe()
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	for _, name := range []string{"result", "log", "kubeconfig", "pods.yaml"} {
		if err := os.RemoveAll(file(name)); err != nil {
			return err
		}
	}
	process, err := startServing(lock, args)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	result, err := waitForResult(ended)
	if err != nil {
		return err
	}
	if err := describe(); err != nil {
		return err
	}
	if result != "ok" {
		return fmt.Errorf("the cluster is running, but: %s", result)
	}
	return nil
}

// prepare creates the folder. The default path is well known, so prepare rejects a folder of another user.
func prepare() error {
	if err := os.Mkdir(stateDir(), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(stateDir())
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || stat.Uid != 0 || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is not a folder of root alone: remove it", stateDir())
	}
	return nil
}

// startServing starts this program again as a detached process. It inherits the lock and holds it until it ends.
func startServing(lock *os.File, args []string) (*exec.Cmd, error) {
	log, err := os.Create(file("log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command("/proc/self/exe", append([]string{"run"}, args...)...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, cmd.Start()
}

func waitForResult(ended <-chan error) (string, error) {
	for {
		if text, err := os.ReadFile(file("result")); err == nil {
			return strings.TrimSpace(string(text)), nil
		}
		select {
		case err := <-ended:
			text, _ := os.ReadFile(file("log"))
			return "", fmt.Errorf("the cluster did not start: %v\n%s\nlogs of its components: %s", err, text, file("logs"))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// describe prints how to use the cluster.
func describe() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	fmt.Printf(`
  %s get nodes          or: export KUBECONFIG=%s
  %s node node-1          a shell on a node
  %s          logs of all components
  make cluster-down

Nodes reach no registry. Pods can use the image %s (busybox) with imagePullPolicy: Never.
`, file("kubectl"), file("kubeconfig"), os.Args[0], file("logs"), kube.ClientImage)
	if _, err := os.Stat(file("pods.yaml")); err != nil { // there is one node only
		return nil
	}
	fmt.Printf(`
With Waggle, pods of different nodes reach each other; as installed here, through a tunnel. These commands show it:

  %[1]s apply -f %[2]s
  %[1]s wait --for=condition=Ready --timeout=3m pods -l app=on-nodes
  %[1]s exec on-node-1 -- ping -c 3 $(%[1]s get pod on-node-2 -o jsonpath={.status.podIP})
  %[3]s node node-1 %[4]s status
`, file("kubectl"), file("pods.yaml"), os.Args[0], filepath.Join(filepath.Dir(self), "waggle"))
	return nil
}
