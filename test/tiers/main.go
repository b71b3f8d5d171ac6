package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/waggle-net/waggle/pkg/testseed"
	"github.com/waggle-net/waggle/test/stamps"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tiers:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("tiers", flag.ExitOnError)
	all := flags.Bool("all", os.Getenv(allEnv) != "", "also run tests with a cached result; WAGGLE_ALL=1 does the same")
	list := flags.String("list", "", "print the packages of this tier or of \"race\", or the tests that are \"expensive\", and exit")
	times := flags.Bool("filetimes", false, "set the times of the files of a clean clone from their content, and exit")
	_ = flags.Parse(args) // exits on errors
	tree, err := readTree(".")
	switch {
	case err != nil:
		return err
	case *times:
		return setFileTimes(".")
	case *list != "":
		return printPackages(tree, *list)
	case flags.NArg() == 0:
		return fmt.Errorf("name the tiers to run: %s", names())
	}
	seed, err := chooseSeed()
	if err != nil {
		return err
	}
	r := &runner{tree: tree, all: *all, clean: inCI(), out: &locked{out: os.Stdout}, stamps: stamps.In[passedTier](stamps.CacheDir(os.Getenv))}
	var chosen []tier
	for _, name := range flags.Args() {
		t, ok := find(name)
		if !ok {
			return fmt.Errorf("there is no tier %q: want %s", name, names())
		}
		chosen = append(chosen, t)
	}
	return r.run(ctx, chosen, seed)
}

// run runs tiers stage by stage. It continues after a failure.
func (r *runner) run(ctx context.Context, chosen []tier, seed string) error {
	began := time.Now()
	var verdicts []verdict
	for _, together := range stages(chosen) {
		if ctx.Err() != nil {
			break
		}
		for _, t := range together {
			line := fmt.Sprintf("== tier %s: %s", t.name, t.about)
			if s := t.seedOf(seed); s != "" {
				line += "; " + testseed.Env + "=" + s
			}
			fmt.Fprintln(r.out, line)
		}
		verdicts = append(verdicts, r.stage(ctx, together, seed)...)
	}
	var warnings []string
	for i := range verdicts {
		warnings = append(warnings, verdicts[i].check(inCI())...)
		if len(verdicts[i].failed) > 0 {
			verdicts[i].failure(r.out, verdicts[i].tier.seedOf(seed))
		}
		if err := r.keep(verdicts[i], seed); err != nil {
			warnings = append(warnings, err.Error())
		}
	}
	for _, w := range warnings {
		fmt.Fprintln(r.out, "warning:", w)
	}
	if ok := summary(r.out, verdicts, time.Since(began)); !ok || ctx.Err() != nil {
		return errors.Join(errors.New("not all tiers passed"), ctx.Err())
	}
	return nil
}

// inCI reports whether .ci/run started the tests, in a clean clone.
func inCI() bool { return os.Getenv("CI") == "true" }

// stages groups tiers by their stage, in the order of the stages.
func stages(chosen []tier) [][]tier {
	sorted := slices.Clone(chosen)
	slices.SortStableFunc(sorted, func(a, b tier) int { return cmp.Compare(a.stage, b.stage) })
	var all [][]tier
	for i, t := range sorted {
		if i == 0 || sorted[i-1].stage != t.stage {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], t)
	}
	return all
}

// stage runs tiers concurrently. If there are several, each output line starts with the name of its tier.
func (r *runner) stage(ctx context.Context, together []tier, seed string) []verdict {
	verdicts := make([]verdict, len(together))
	var running sync.WaitGroup
	for i, t := range together {
		own := *r
		if len(together) > 1 {
			own.out = &prefixed{t.name + ": ", r.out}
		}
		running.Go(func() { verdicts[i] = own.tier(ctx, t, seed) })
	}
	running.Wait()
	return verdicts
}

// seedOf returns the seed of the tier's tests in a run whose tree has the given seed, or "" for a tier without random tests.
func (t tier) seedOf(tree string) string {
	switch t.seed {
	case treeSeed:
		return tree
	case constantSeed:
		return cmp.Or(os.Getenv(testseed.Env), strconv.Itoa(testseed.Default))
	}
	return ""
}

// chooseSeed returns the seed for the tiers with [treeSeed]: WAGGLE_SEED, or else a number from the hash of the committed tree. So each change is tested with
// other random sequences, and a repetition uses the same ones.
func chooseSeed() (string, error) {
	if seed := os.Getenv(testseed.Env); seed != "" {
		return seed, nil
	}
	out, err := exec.Command("git", "rev-parse", "HEAD^{tree}").Output()
	if err != nil || len(out) < 15 {
		return strconv.Itoa(testseed.Default), nil // not a clone
	}
	n, err := strconv.ParseUint(string(out[:15]), 16, 64)
	return strconv.FormatUint(n, 10), err
}

func printPackages(t *tree, name string) error {
	packages := t.of(name)
	switch name {
	case "expensive":
		packages = slices.Sorted(maps.Keys(expensive))
	case "race":
		race, _ := t.split(t.of("hermetic"))
		more, _ := t.split(t.of("machine"))
		packages = append(race, more...)
	}
	if len(packages) == 0 {
		return fmt.Errorf("tier %q has no packages", name)
	}
	for _, p := range packages {
		fmt.Println(p)
	}
	return nil
}
