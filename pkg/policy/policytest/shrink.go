package policytest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Shrink makes a world smaller as long as the failure stays: whole policies first, then any part of one.
func Shrink(w *World, fails func(*World) bool) *World {
	for again := true; again; {
		again = false
		for smaller := range w.smaller {
			if fails(smaller) {
				w, again = smaller, true
				break
			}
		}
	}
	return w
}

// smaller yields worlds with one thing less.
func (w *World) smaller(yield func(*World) bool) {
	with := func(kubernetes []*k8s.NetworkPolicy, ciliums []*cilium.Policy) bool {
		smaller := *w
		smaller.Kubernetes, smaller.Cilium = kubernetes, ciliums
		return yield(&smaller)
	}
	for i := range w.Kubernetes {
		if !with(slices.Delete(slices.Clone(w.Kubernetes), i, i+1), w.Cilium) {
			return
		}
	}
	for i := range w.Cilium {
		if !with(w.Kubernetes, slices.Delete(slices.Clone(w.Cilium), i, i+1)) {
			return
		}
	}
	for i, p := range w.Kubernetes {
		for _, less := range without(p) {
			kubernetes := slices.Clone(w.Kubernetes)
			if kubernetes[i] = less; !with(kubernetes, w.Cilium) {
				return
			}
		}
	}
	for i, p := range w.Cilium {
		for _, less := range without(p) {
			ciliums := slices.Clone(w.Cilium)
			if ciliums[i] = less; !with(w.Kubernetes, ciliums) {
				return
			}
		}
	}
}

// without returns copies of a row, each without one field or one item of a list.
func without[T any](row *T) (all []*T) {
	text, err := json.Marshal(row)
	if err != nil {
		panic(err) // a row that tests made
	}
	size := len(text)
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		panic(err)
	}
	for _, less := range prune(tree) {
		text, err := json.Marshal(less)
		if err != nil {
			panic(err)
		}
		var smaller T
		if json.Unmarshal(text, &smaller) != nil {
			continue
		}
		if again, err := json.Marshal(&smaller); err == nil && len(again) < size { // what is always written is not less without it
			all = append(all, &smaller)
		}
	}
	return all
}

// prune returns copies of a tree, each without one branch.
func prune(tree any) (all []any) {
	switch node := tree.(type) {
	case map[string]any:
		for key, value := range node {
			with := func(value any, keep bool) {
				other := map[string]any{}
				for k, v := range node {
					other[k] = v
				}
				if other[key] = value; !keep {
					delete(other, key)
				}
				all = append(all, other)
			}
			if key == "name" || key == "namespace" {
				continue
			}
			with(nil, false)
			for _, less := range prune(value) {
				with(less, true)
			}
		}
	case []any:
		for i, value := range node {
			all = append(all, slices.Delete(slices.Clone(node), i, i+1))
			for _, less := range prune(value) {
				other := slices.Clone(node)
				other[i] = less
				all = append(all, other)
			}
		}
	}
	return all
}

// String shows the policies and pods, for the message of a test that failed.
func (w *World) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, options %+v, API server here: %t, and at %v\n", w.Seed, w.Options, w.Environment.APIServerHere, w.Environment.APIServers)
	for _, p := range w.Pods {
		fmt.Fprintf(&b, "pod %s: identity %d, %v, %v, ports %v\n", p.Object.Key(), p.Identity, p.Labels, p.Addrs, p.Ports)
	}
	for _, g := range w.Groups {
		fmt.Fprintf(&b, "group %s\n", show(g))
	}
	for _, p := range w.Kubernetes {
		fmt.Fprintf(&b, "kubernetes: %s\n", show(p))
	}
	for _, p := range w.Cilium {
		fmt.Fprintf(&b, "cilium: %s\n", show(p))
	}
	return b.String()
}

func show(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
