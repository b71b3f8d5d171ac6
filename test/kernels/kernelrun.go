package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/waggle-net/waggle/test/kernels/plan"
	"github.com/waggle-net/waggle/test/stamps"
)

// kernelRun is the run of one kernel's suites.
type kernelRun struct {
	kernel   *kernel
	chosen   []suite
	left     []suite                      // chosen suites that have to run
	modules  map[string][]string          // additional modules of a suite in load order: paths, by package
	base     []string                     // paths of the modules of all suites in load order
	hashes   map[string]string            // of the suites, by package
	testdata map[string]map[string]string // checksums, by package
	stamps   stamps.Store[stamp]
	report   *report
	dir      string // for the output
	programs string // folder of the programs, which all kernels share
	hardware []string
	timeout  time.Duration

	kernelArgs  string
	agentBefore string // program: the agent of another revision; empty for none
	partial     bool   // the tests or programs differ from the table's: write no stamps
	cpu         float64
	err         error
}

func newKernelRun(k *kernel, chosen []suite, o options) *kernelRun {
	var pkgs []string
	for _, s := range chosen {
		pkgs = append(pkgs, s.pkg)
	}
	return &kernelRun{kernel: k, chosen: chosen, modules: map[string][]string{}, hashes: map[string]string{}, testdata: map[string]map[string]string{},
		stamps: stamps.In[stamp](o.cache), report: newReport(k.series, pkgs, os.Stdout),
		dir: filepath.Join(o.out, k.series), programs: filepath.Join(o.out, "programs"), hardware: hardware(accelerator(o.accel, k.series), machineCPUs),
		kernelArgs: kernelArgs, timeout: o.timeout, agentBefore: o.agentBefore, partial: o.run != "" || o.agentBefore != ""}
}

// skipUnchanged removes, on each kernel, the suites that have passed with the same inputs.
func skipUnchanged(ctx context.Context, runs []*kernelRun, o options) error {
	packages := []string{guestPackage, runnerPackage}
	for _, r := range runs {
		if err := r.findModules(ctx); err != nil {
			return err
		}
		for _, s := range r.chosen {
			packages = append(packages, module+"/"+s.pkg)
			for _, name := range strings.Fields(s.programs) {
				packages = append(packages, programPackage(name))
			}
		}
	}
	slices.Sort(packages)
	ids, err := identities(ctx, slices.Compact(packages))
	if err != nil {
		return err
	}
	qemu, err := emulator(ctx)
	if err != nil {
		return err
	}
	for _, r := range runs {
		for _, s := range r.chosen {
			if err := r.decide(s, ids, qemu, o.all); err != nil {
				return fmt.Errorf("suite %s: %w", s.pkg, err)
			}
		}
	}
	return nil
}

// decide computes the hash of a suite and decides whether the suite has to run.
func (r *kernelRun) decide(s suite, ids map[string]string, qemu string, all bool) error {
	sums, err := checksums(filepath.Join(s.pkg, "testdata"))
	if err != nil {
		return err
	}
	r.testdata[s.pkg] = sums
	in := inputs{Suite: r.planned(s), Base: names(r.base), Kernel: r.kernel.id, Machine: append([]string{qemu, r.kernelArgs}, r.hardware...),
		Guest: ids[guestPackage], Runner: ids[runnerPackage], Binary: ids[s.binary()], Programs: map[string]string{}, Testdata: sums}
	for _, name := range strings.Fields(s.programs) {
		in.Programs[name] = ids[programPackage(name)]
	}
	for what, id := range map[string]string{"guest": in.Guest, "test2json": in.Runner, "tests": in.Binary} {
		if id == "" {
			return fmt.Errorf("find the hash of the %s: go list does not name the program", what)
		}
	}
	hash, err := in.hash()
	if err != nil {
		return err
	}
	r.hashes[s.pkg] = hash
	if passed, found := r.stamps.Find(hash); found && !all && !r.partial {
		r.report.unchanged(s.pkg, &passed)
		return nil
	}
	r.left = append(r.left, s)
	return nil
}

// findModules determines the modules of all suites and the additional ones of each suite.
func (r *kernelRun) findModules(ctx context.Context) (err error) {
	if r.base, err = r.kernel.loadOrder(ctx, baseModules); err != nil {
		return err
	}
	for _, s := range r.chosen {
		if r.modules[s.pkg], err = r.kernel.loadOrder(ctx, strings.Fields(s.modules)); err != nil {
			return fmt.Errorf("suite %s needs modules %s: %w", s.pkg, s.modules, err)
		}
	}
	return nil
}

// planned returns a suite with the modules as files of this kernel.
func (r *kernelRun) planned(s suite) plan.Suite {
	p := s.planned()
	p.Modules = names(r.modules[s.pkg])
	if r.agentBefore != "" {
		p.Env = append(p.Env, plan.AgentBeforeEnv+"="+plan.AgentBefore)
	}
	return p
}

func names(paths []string) (names []string) {
	for _, p := range paths {
		names = append(names, filepath.Base(p))
	}
	return names
}

// buildAll links the programs of all suites that have to run.
func buildAll(ctx context.Context, runs []*kernelRun) error {
	files := map[string]string{}
	for _, r := range runs {
		if err := os.MkdirAll(r.dir, 0o755); err != nil {
			return err
		}
		for _, p := range r.packages() {
			files[p] = fileOf(r.programs, p)
		}
	}
	return build(ctx, files)
}

// packages returns the import paths of all programs that the machine needs.
func (r *kernelRun) packages() []string {
	if len(r.left) == 0 {
		return nil
	}
	all := []string{guestPackage, runnerPackage}
	for _, s := range r.left {
		all = append(all, s.binary())
		for _, name := range strings.Fields(s.programs) {
			all = append(all, programPackage(name))
		}
	}
	return all
}

func programPackage(name string) string { return module + "/cmd/" + name }

// fileSystem returns the content of the machine's memory file system.
func (r *kernelRun) fileSystem() (fileSystem, error) {
	f := fileSystem{files: map[string]string{
		"init":          fileOf(r.programs, guestPackage),
		"bin/test2json": fileOf(r.programs, runnerPackage),
	}, texts: map[string][]byte{}}
	p := plan.Plan{Modules: names(r.base)}
	loaded := slices.Clone(r.base)
	for _, s := range r.left {
		p.Suites = append(p.Suites, r.planned(s))
		f.files[inside(plan.TestDir, path.Base(fileOf("/", s.binary())))] = fileOf(r.programs, s.binary())
		f.folders = append(f.folders, inside(plan.TreeDir, s.pkg))
		for name := range maps.Keys(r.testdata[s.pkg]) {
			f.files[inside(plan.TreeDir, s.pkg, "testdata", filepath.ToSlash(name))] = filepath.Join(s.pkg, "testdata", name)
		}
		for _, name := range strings.Fields(s.programs) {
			f.files[inside(plan.ProgramDir, name)] = fileOf(r.programs, programPackage(name))
		}
		loaded = append(loaded, r.modules[s.pkg]...)
	}
	if r.agentBefore != "" {
		f.files[inside(plan.AgentBefore)] = r.agentBefore
	}
	for _, m := range loaded {
		f.files[inside(plan.ModuleDir, filepath.Base(m))] = m
	}
	text, err := json.Marshal(p)
	f.texts[inside(plan.Path)] = text
	return f, err
}

// inside returns a path in the machine in the form that the archive needs.
func inside(elem ...string) string { return strings.TrimPrefix(path.Join(elem...), "/") }

// leaveStamps writes stamps of suites that passed and removes the stamps of suites that failed. If a machine ended abnormally, no suite of its run counts as
// passed.
func (r *kernelRun) leaveStamps() error {
	if r.partial {
		return nil
	}
	var errs []error
	for _, s := range r.left {
		hash, ended := r.hashes[s.pkg], r.report.of(s.pkg)
		if r.err != nil || ended.failed || !ended.ended {
			errs = append(errs, r.stamps.Remove(hash))
			continue
		}
		errs = append(errs, r.stamps.Put(hash, stamp{Kernel: r.kernel.version, Package: s.pkg, Date: r.stamps.Now(), Tests: ended.passed,
			Skipped: ended.skipped, Attributes: ended.attributes}))
	}
	return errors.Join(errs...)
}
