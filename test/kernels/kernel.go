package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// metaPackages are the packages whose dependency is the newest kernel of a series. Debian 12 has both series.
var metaPackages = map[string]string{
	"6.1":  "linux-image-cloud-amd64",
	"6.12": "linux-image-6.12-cloud-amd64",
}

// modules are what the tests and the agent use and Debian does not compile in. A machine of Debian's loads them when they
// are first needed; here they are loaded at the start.
var modules = []string{"veth", "vxlan", "tun", "dummy", "bridge", "macvlan", "cls_bpf", "sch_ingress", "nf_tables", "nft_ct", "nft_chain_nat", "nft_fib_inet", "vrf", "tcp_diag", "udp_diag"}

// kernel is an unpacked package.
type kernel struct {
	series  string   // such as "6.1"
	dir     string   // ours to write to
	version string   // as uname says it
	image   string   // path of the bootable file
	modules []string // paths, in the order in which they can be loaded
}

// fetch finds a kernel in dir, or downloads its package and unpacks it there. It is not installed.
func fetch(ctx context.Context, dir, series string) (*kernel, error) {
	unpacked, err := filepath.Abs(filepath.Join(dir, "unpacked"))
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(unpacked); errors.Is(err, os.ErrNotExist) {
		if err := download(ctx, unpacked, series); err != nil {
			return nil, fmt.Errorf("get a kernel %s: %w", series, err)
		}
	}
	images, err := filepath.Glob(filepath.Join(unpacked, "boot", "vmlinuz-"+series+".*"))
	if err != nil || len(images) != 1 {
		return nil, fmt.Errorf("find the kernel in %s: %d files are called boot/vmlinuz-%s.*; remove the folder to have it made again",
			unpacked, len(images), series)
	}
	k := &kernel{series: series, dir: dir, image: images[0], version: strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")}
	k.modules, err = loadOrder(ctx, unpacked, k.version)
	return k, err
}

// download unpacks the newest package of a series. The folder appears only when it is complete.
func download(ctx context.Context, unpacked, series string) error {
	name, err := newest(ctx, series)
	if err != nil {
		if _, err := command(ctx, "", "apt-get", "-q", "update"); err != nil {
			return err
		}
		if name, err = newest(ctx, series); err != nil {
			return err
		}
	}
	fmt.Printf("%-5s get   %s\n", series, name)
	tmp := unpacked + ".tmp"
	if err := errors.Join(os.RemoveAll(tmp), os.MkdirAll(tmp, 0o755)); err != nil {
		return err
	}
	// As root, apt would let a user without rights download, who may not write here.
	if _, err := command(ctx, tmp, "apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", name); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(files) != 1 {
		return fmt.Errorf("download %s: %d packages came", name, len(files))
	}
	if _, err := command(ctx, "", "dpkg-deb", "-x", files[0], tmp); err != nil {
		return err
	}
	if err := os.Remove(files[0]); err != nil {
		return err
	}
	return os.Rename(tmp, unpacked)
}

// newest asks the meta package of a series for the package of the kernel itself.
func newest(ctx context.Context, series string) (string, error) {
	meta, found := metaPackages[series]
	if !found {
		return "", errors.New("no package is known for it: add its meta package to metaPackages in test/kernels/kernel.go")
	}
	out, err := command(ctx, "", "apt-cache", "depends", "--important", meta)
	if err != nil {
		return "", err
	}
	for word := range strings.FieldsSeq(out) {
		if strings.HasPrefix(word, "linux-image-"+series+".") {
			return word, nil
		}
	}
	return "", fmt.Errorf("package %s depends on no linux-image-%s.*: this machine's package sources must include Debian 12 "+
		"(bookworm and bookworm-security)", meta, series)
}

// loadOrder lists the files of the modules, each behind those it needs.
func loadOrder(ctx context.Context, unpacked, version string) ([]string, error) {
	if _, err := command(ctx, "", "depmod", "-b", unpacked, version); err != nil {
		return nil, err
	}
	args := []string{"-C", "/dev/null", "-d", unpacked, "-S", version, "--show-depends", "-a"}
	out, err := command(ctx, "", "modprobe", append(args, modules...)...)
	if err != nil {
		return nil, err
	}
	var files []string
	for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
		// "insmod PATH", or "builtin NAME".
		if path, found := strings.CutPrefix(strings.TrimSpace(lines.Text()), "insmod "); found && !slices.Contains(files, path) {
			files = append(files, path)
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("find the modules of kernel %s: modprobe names none:\n%s", version, out)
	}
	return files, nil
}

// command runs a program of this machine's and returns its output, which is in the error as well.
func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil && os.Geteuid() == 0 {
		path, err = exec.LookPath("/sbin/" + name)
	}
	if err != nil {
		return "", fmt.Errorf("run %s: %w: run hack/packages as root", name, err)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("run %s %s: %w\n%s", name, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}
