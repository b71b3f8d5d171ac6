package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// metaPackages are the packages that depend on the newest kernel of a series. Debian 12 has both series.
var metaPackages = map[string]string{
	"6.1":  "linux-image-cloud-amd64",
	"6.12": "linux-image-6.12-cloud-amd64",
}

// checksumFile contains the SHA-256 of the package that was unpacked to a folder.
const checksumFile = "package.sha256"

// kernel is an unpacked kernel package.
type kernel struct {
	series   string // such as "6.1"
	unpacked string // folder of the package's files; read-only
	version  string // in the format of uname
	id       string // the package's file name and checksum
	image    string // path of the bootable file
}

// debian is a package in the package sources of this machine.
type debian struct{ name, file, sha256 string }

// fetch returns the newest kernel of a series from the folder of kernels, or downloads its package and unpacks it there. The package is not installed. If the
// package lists are missing, so that the newest kernel is unknown, fetch returns the kernel that was unpacked last.
func fetch(ctx context.Context, kernels, series string) (*kernel, error) {
	kernels, err := filepath.Abs(kernels)
	if err != nil {
		return nil, err
	}
	p, err := newest(ctx, series)
	if last := lastUnpacked(kernels, series); err != nil && last != "" {
		return open(last, series)
	}
	if err == nil {
		if k, err := open(filepath.Join(kernels, p.folder()), series); !errors.Is(err, os.ErrNotExist) {
			return k, err
		}
		err = download(ctx, kernels, series, p)
	}
	if err != nil { // the lists of packages are missing or too old
		_, update := command(ctx, "", "apt-get", "-q", "update")
		if update == nil {
			p, update = newest(ctx, series)
		}
		if update == nil {
			update = download(ctx, kernels, series, p)
		}
		if update != nil {
			return nil, fmt.Errorf("get a kernel %s: %w", series, errors.Join(err, update))
		}
	}
	return open(filepath.Join(kernels, p.folder()), series)
}

// lastUnpacked returns the folder of the most recently unpacked kernel of a series, or "".
func lastUnpacked(kernels, series string) (last string) {
	folders, _ := filepath.Glob(filepath.Join(kernels, "linux-image-"+series+".*")) // the pattern is valid
	var newest time.Time
	for _, dir := range folders {
		if info, err := os.Stat(filepath.Join(dir, checksumFile)); err == nil && info.ModTime().After(newest) {
			last, newest = dir, info.ModTime()
		}
	}
	return last
}

// folder returns the name of the package's folder: the name and version of the package, and enough of its checksum to distinguish two packages with the same
// version.
func (p debian) folder() string { return strings.TrimSuffix(p.file, ".deb") + "_" + p.sha256[:12] }

// open returns an unpacked kernel.
func open(dir, series string) (*kernel, error) {
	sum, err := os.ReadFile(filepath.Join(dir, checksumFile))
	if err != nil {
		return nil, err
	}
	images, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-"+series+".*"))
	if err != nil || len(images) != 1 {
		return nil, fmt.Errorf("find the kernel in %s: %d files are called boot/vmlinuz-%s.*; remove the folder, which the next run recreates",
			dir, len(images), series)
	}
	return &kernel{series: series, unpacked: dir, image: images[0], version: strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-"),
		id: filepath.Base(dir) + " " + strings.TrimSpace(string(sum))}, nil
}

// download downloads and unpacks a package. Its folder appears only when complete, so concurrent runs are possible: the first to finish wins.
func download(ctx context.Context, kernels, series string, p debian) error {
	fmt.Printf("%-5s get   %s\n", series, p.file)
	if err := os.MkdirAll(kernels, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(kernels, ".unpack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	// As root, apt would download as an unprivileged user, and that user may not write to this folder.
	if _, err := command(ctx, tmp, "apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", p.name); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(files) != 1 {
		return fmt.Errorf("download %s: %d packages came", p.name, len(files))
	}
	root := filepath.Join(tmp, "root")
	if _, err := command(ctx, "", "dpkg-deb", "-x", files[0], root); err != nil {
		return err
	}
	versions, err := filepath.Glob(filepath.Join(root, "lib", "modules", "*"))
	if err != nil || len(versions) != 1 {
		return fmt.Errorf("unpack %s: it has modules of %d versions, want one", p.file, len(versions))
	}
	if _, err := command(ctx, "", "depmod", "-b", root, filepath.Base(versions[0])); err != nil {
		return err
	}
	return errors.Join(
		os.Chmod(root, 0o755),
		os.WriteFile(filepath.Join(root, checksumFile), []byte(p.sha256+"\n"), 0o644),
		moveInto(root, filepath.Join(kernels, p.folder())),
	)
}

// moveInto renames a complete folder. It is no error if another run has created the same folder concurrently.
func moveInto(from, to string) error {
	err := os.Rename(from, to)
	if _, found := os.Stat(to); found == nil {
		return nil
	}
	return err
}

// newest returns the kernel package that the meta package of a series depends on.
func newest(ctx context.Context, series string) (debian, error) {
	meta, found := metaPackages[series]
	if !found {
		return debian{}, errors.New("no package is known for it: add its meta package to metaPackages in test/kernels/kernel.go")
	}
	out, err := command(ctx, "", "apt-cache", "depends", "--important", meta)
	if err != nil {
		return debian{}, err
	}
	for word := range strings.FieldsSeq(out) {
		if strings.HasPrefix(word, "linux-image-"+series+".") {
			uris, err := command(ctx, "", "apt-get", "-q", "download", "--print-uris", word)
			if err != nil {
				return debian{}, err
			}
			return parseURI(word, uris)
		}
	}
	return debian{}, fmt.Errorf("package %s depends on no linux-image-%s.*: this machine's package sources must include Debian 12 "+
		"(bookworm and bookworm-security)", meta, series)
}

// parseURI parses a line of `apt-get download --print-uris`: the quoted address, the file's name, its size, its checksum.
func parseURI(name, line string) (debian, error) {
	fields := strings.Fields(line)
	if len(fields) == 4 {
		if sum, found := strings.CutPrefix(fields[3], "SHA256:"); found && len(sum) == 64 {
			return debian{name: name, file: fields[1], sha256: sum}, nil
		}
	}
	return debian{}, fmt.Errorf("find package %s: apt-get prints %q, want an address, a file, a size and a SHA256", name, strings.TrimSpace(line))
}

// loadOrder returns the files of modules, each after its dependencies. Modules that are compiled into the kernel have none.
func (k *kernel) loadOrder(ctx context.Context, modules []string) (files []string, err error) {
	if len(modules) == 0 {
		return nil, nil
	}
	args := []string{"-C", "/dev/null", "-d", k.unpacked, "-S", k.version, "--show-depends", "-a"}
	out, err := command(ctx, "", "modprobe", append(args, modules...)...)
	if err != nil {
		return nil, fmt.Errorf("find modules of kernel %s: %w", k.version, err)
	}
	for line := range strings.Lines(out) {
		// The line is "insmod PATH" or "builtin NAME".
		if path, found := strings.CutPrefix(strings.TrimSpace(line), "insmod "); found && !slices.Contains(files, path) {
			files = append(files, path)
		}
	}
	return files, nil
}

// command runs a program of this machine and returns its output. The error contains the program's stderr.
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
