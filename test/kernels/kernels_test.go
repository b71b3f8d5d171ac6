package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cavaliergopher/cpio"
)

func parseArgs(t *testing.T, env map[string]string, args ...string) (options, error) {
	t.Helper()
	flags := flag.NewFlagSet("kernels", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return parse(flags, args, func(name string) string { return env[name] })
}

func TestParse_CacheAndAllFromEnvironment(t *testing.T) {
	t.Parallel()
	o, err := parseArgs(t, map[string]string{"WAGGLE_CACHE": "/c", "WAGGLE_ALL": "1"}, "-packages", "./bpf/,cni")
	if err != nil || o.cache != "/c" || !o.all || !slices.Equal(o.packages, []string{"bpf", "cni"}) || !slices.Equal(o.kernels, []string{oldest, newer}) {
		t.Errorf("got %+v, %v", o, err)
	}
	o, err = parseArgs(t, map[string]string{"WAGGLE_CACHE": "/c"}, "-cache", "/d", "-all", "-kernels", "6.1")
	if err != nil || o.cache != "/d" || !o.all || !slices.Equal(o.kernels, []string{"6.1"}) {
		t.Errorf("got %+v, %v", o, err)
	}
	if o, err := parseArgs(t, nil); err != nil || o.all || o.cache == "" {
		t.Errorf("without environment: %+v, %v", o, err)
	}
	if _, err := parseArgs(t, nil, "-o", "yaml"); err == nil {
		t.Error("another format is accepted")
	}
}

func TestChoose_TableOrCommandLine(t *testing.T) {
	t.Parallel()
	const tree = "../.."
	packages := func(series string, o options) (pkgs []string) {
		t.Helper()
		chosen, err := choose(tree, series, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range chosen {
			pkgs = append(pkgs, s.pkg)
		}
		return pkgs
	}
	if got := packages(oldest, options{packages: []string{"cni", "bpf/tests"}}); !slices.Equal(got, []string{"bpf/tests", "cni"}) {
		t.Errorf("two packages of the table: %v", got)
	}
	all, some := packages(oldest, options{}), packages(newer, options{})
	if len(all) <= len(some) || len(some) == 0 {
		t.Errorf("%d suites on the oldest kernel, %d on the newer", len(all), len(some))
	}
	// Omitted tests may be selected by name. The table's programs of their package apply.
	chosen, err := choose(tree, newer, options{packages: []string{"test/node"}, run: "Spoof_"})
	if err != nil || len(chosen) != 1 || chosen[0].tests != "Spoof_IsDroppedCountedAndShown" || chosen[0].programs == "" {
		t.Errorf("one test that the table leaves out: %+v, %v", chosen, err)
	}
	for _, o := range []options{{packages: []string{"pkg/nothing"}}, {run: "NoSuchTest"}, {run: "("}} {
		if _, err := choose(tree, oldest, o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

func TestNewest_UnknownSeries(t *testing.T) {
	t.Parallel()
	if _, err := newest(t.Context(), "5.4"); err == nil || !strings.Contains(err.Error(), "metaPackages") {
		t.Errorf("got %v", err)
	}
}

func TestParseURI(t *testing.T) {
	t.Parallel()
	sum := strings.Repeat("ab", 32)
	p, err := parseURI("linux", "'http://deb.example/l/linux_6.1_amd64.deb' linux_6.1_amd64.deb 12 SHA256:"+sum+"\n")
	if err != nil || p != (debian{"linux", "linux_6.1_amd64.deb", sum}) || p.folder() != "linux_6.1_amd64_abababababab" {
		t.Errorf("got %+v, %v", p, err)
	}
	for _, line := range []string{"", "'u' f.deb 12 MD5Sum:" + sum, "'u' f.deb 12 SHA256:ab"} {
		if p, err := parseURI("linux", line); err == nil {
			t.Errorf("%q: %+v", line, p)
		}
	}
}

// unpack writes the files of an unpacked kernel that [open] needs.
func unpack(t *testing.T, dir string) string {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "boot"), 0o755), os.WriteFile(filepath.Join(dir, checksumFile), []byte("sum\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "boot", "vmlinuz-6.1.0-9-cloud-amd64"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestOpen_PackageIdentifiesKernel(t *testing.T) {
	t.Parallel()
	dir := unpack(t, filepath.Join(t.TempDir(), "linux-image-6.1.0-9_1"))
	k, err := open(dir, "6.1")
	if err != nil || k.version != "6.1.0-9-cloud-amd64" || k.id != "linux-image-6.1.0-9_1 sum" {
		t.Errorf("got %+v, %v", k, err)
	}
	if _, err := open(dir, "6.12"); err == nil {
		t.Error("a kernel of another series is found")
	}
	if got := lastUnpacked(filepath.Dir(dir), "6.1"); got != dir {
		t.Errorf("the last kernel is %q", got)
	}
	if got := lastUnpacked(filepath.Dir(dir), "6.12"); got != "" {
		t.Errorf("the last kernel of another series is %q", got)
	}
}

// Two runs unpack one package concurrently: the first to finish wins, and the second uses its folder.
func TestMoveInto_ConcurrentCall_Succeeds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second, to := unpack(t, filepath.Join(dir, "first")), unpack(t, filepath.Join(dir, "second")), filepath.Join(dir, "kernel")
	for _, from := range []string{first, second} {
		if err := moveInto(from, to); err != nil {
			t.Errorf("%s: %v", from, err)
		}
	}
	if _, err := open(to, "6.1"); err != nil {
		t.Error(err)
	}
	if err := moveInto(filepath.Join(dir, "nothing"), filepath.Join(dir, "nowhere")); err == nil {
		t.Error("a folder that does not exist was moved")
	}
}

func TestFileSystem_ContainsFilesTextsAndFolders(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program, out := filepath.Join(dir, "program"), filepath.Join(dir, "initramfs")
	if err := os.WriteFile(program, []byte("first"), 0o755); err != nil {
		t.Fatal(err)
	}
	f := fileSystem{files: map[string]string{"init": program, "bin/test2json": program}, texts: map[string][]byte{"plan.json": []byte("{}")},
		folders: []string{"tree/pkg/tc"}}
	if err := f.write(out); err != nil {
		t.Fatal(err)
	}
	want := []string{"bin drwxr-xr-x ", "tree drwxr-xr-x ", "tree/pkg drwxr-xr-x ", "tree/pkg/tc drwxr-xr-x ",
		"bin/test2json -rwxr-xr-x first", "init -rwxr-xr-x first", "plan.json -rw-r--r-- {}"}
	if got := readArchive(t, out); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func readArchive(t *testing.T, path string) (entries []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for archive := cpio.NewReader(bytes.NewReader(text)); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return entries
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, header.Name+" "+header.FileInfo().Mode().String()+" "+string(content))
	}
}

func TestKernelRun_MachineContainsOnlyRemainingSuites(t *testing.T) {
	t.Parallel()
	r := newKernelRun(&kernel{series: "6.1"}, []suite{{pkg: "bpf"}, {pkg: "cni", programs: "waggle-cni"}}, options{out: "/out"})
	r.base, r.modules = []string{"/k/veth.ko"}, map[string][]string{"cni": {"/k/wireguard.ko", "/k/tunnel.ko"}} // in load order
	r.left = r.chosen[1:]
	f, err := r.fileSystem()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"bin/test2json", "init", "modules/tunnel.ko", "modules/veth.ko", "modules/wireguard.ko", "programs/waggle-cni", "tests/cni.test"}
	if got := slices.Sorted(maps.Keys(f.files)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, part := range []string{`"Modules":["veth.ko"]`, `"Modules":["wireguard.ko","tunnel.ko"]`, `"Programs":["waggle-cni"]`} {
		if !strings.Contains(string(f.texts["plan.json"]), part) {
			t.Errorf("the plan lacks %s: %s", part, f.texts["plan.json"])
		}
	}
}

// A machine whose kernel panics at boot starts once more and keeps its console; one that has begun a suite does not.
func TestBoot_RetriesBeforeFirstSuite(t *testing.T) {
	t.Parallel()
	const event = `{"Action":"suite passed","Package":"bpf"}`
	errStart := errors.New("run qemu: refused")
	for name, c := range map[string]struct {
		outputs []string // of each machine in turn
		err     error
		starts  int
	}{
		"healthy":              {[]string{event, event}, nil, 1},
		"panic at boot":        {[]string{"", event, event}, nil, 2},
		"panic at each boot":   {[]string{"", "", event}, nil, 2},
		"no emulator":          {[]string{"", event}, errStart, 1},
		"panic during a suite": {[]string{`{"Action":"start","Package":"bpf"}`, event}, nil, 1},
	} {
		var out bytes.Buffer
		r := newKernelRun(&kernel{series: "6.12"}, []suite{{pkg: "bpf"}}, options{out: t.TempDir()})
		r.report.out = &out
		if err := os.Mkdir(r.dir, 0o755); err != nil {
			t.Fatal(err)
		}
		starts := 0
		err := r.bootUntilEvents(func() error {
			starts++
			return errors.Join(c.err, os.WriteFile(r.console(), fmt.Appendf(nil, "Kernel panic %d\n", starts), 0o644),
				r.report.read(strings.NewReader(c.outputs[starts-1])))
		})
		if !errors.Is(err, c.err) || starts != c.starts {
			t.Errorf("%s: %d machines, want %d; %v", name, starts, c.starts, err)
		}
		kept, _ := os.ReadFile(filepath.Join(r.dir, "console-1.log"))
		if again := c.starts == 2; strings.Contains(out.String(), "Kernel panic 1") != again || (string(kept) == "Kernel panic 1\n") != again {
			t.Errorf("%s: said %q, kept %q", name, &out, kept)
		}
	}
}
