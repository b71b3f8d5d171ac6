package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

const benchOutput = `goos: linux
BenchmarkFlow/established/to-pod/IPv4
BenchmarkFlow/established/to-pod/IPv4 	      25	      3000 ns/packet	      2000 ns/packet-net
BenchmarkFlow/new/to-pod/IPv4-2         	      25	      7000 ns/packet	      6000 ns/packet-net
BenchmarkOther 	      25	      7000 ns/op
PASS
`

func TestParseBenchmarks_CountsAndRatios(t *testing.T) {
	t.Parallel()
	got := parseBenchmarks(benchOutput)
	want := []benchmark{{"Flow/established/to-pod/IPv4", 3000, 2000, 3}, {"Flow/new/to-pod/IPv4", 7000, 6000, 7}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := ratios(got), []ratio{{"new to established, to-pod/IPv4", 3}}; !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	var out bytes.Buffer
	if err := printCounts(&out, []counts{{"6.1.0", want, ratios(want)}}); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"Linux 6.1.0, instructions per packet", "3.000  Flow/established/to-pod/IPv4", "3.000  new to established, to-pod/IPv4"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("the table lacks %q:\n%s", line, &out)
		}
	}
}

func TestBenchmarkText_RequiresPassedSuite(t *testing.T) {
	t.Parallel()
	const line = `{"Action":"output","Package":"bpf","Test":"BenchmarkFlow","Output":"first "}` + "\n" + `{"Action":"output","Package":"bpf","Output":"second"}` + "\n"
	if text, err := benchmarkText(strings.NewReader(line + `{"Action":"suite passed","Package":"bpf"}`)); err != nil || text != "first second" {
		t.Errorf("got %q, %v", text, err)
	}
	for _, end := range []string{"", `{"Action":"suite failed","Package":"bpf"}`, "Kernel panic"} {
		if _, err := benchmarkText(strings.NewReader(line + end)); err == nil {
			t.Errorf("%q is no error", end)
		}
	}
}
