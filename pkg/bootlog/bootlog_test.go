package bootlog

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
)

// TestHandler_RecordsHooksOfARealHive fails when hive changes the text of its records.
func TestHandler_RecordsHooksOfARealHive(t *testing.T) {
	t.Parallel()
	h := upstream.NewWithOptions(upstream.Options{LogThreshold: time.Hour, StartTimeout: time.Minute, StopTimeout: time.Minute},
		cell.SimpleHealthCell, job.Cell,
		cell.Module("slow-one", "A module with a hook", cell.Invoke(func(lc cell.Lifecycle) {
			lc.Append(cell.Hook{OnStart: func(cell.HookContext) error { time.Sleep(2 * time.Millisecond); return nil }})
		})),
		cell.Module("worker", "A module with a job", cell.Invoke(func(r job.Registry, health cell.Health) {
			r.NewGroup(health).Add(job.OneShot("count-bees", func(context.Context, cell.Health) error { return nil }))
		})),
	)
	var out bytes.Buffer
	recorder := NewRecorder()
	log := slog.New(NewHandler(slog.NewTextHandler(&out, nil), recorder))
	if err := h.Start(log, t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Stop(log, context.Background()) })

	<-recorder.Recorded()
	byModule := map[string]Hook{}
	for _, hook := range recorder.Take() {
		byModule[hook.Module] = hook
	}
	slow := byModule["slow-one"]
	if slow.Duration < 2*time.Millisecond || slow.Start.IsZero() || !strings.Contains(slow.Name, "bootlog_test.go:") {
		t.Errorf("hook of slow-one: %+v", slow)
	}
	// Hive starts all jobs in its own module; only the detail distinguishes them.
	if jobs := byModule["jobs"]; !strings.HasPrefix(jobs.Detail, "count-bees (") {
		t.Errorf("hook of the job: %+v", jobs)
	}
	if strings.Contains(out.String(), hookExecuted) {
		t.Errorf("a quick hook is in the log:\n%s", out.String())
	}
	if got := recorder.Take(); len(got) != 0 {
		t.Errorf("taken twice: %v", got)
	}
}

func TestHandler_DemotesJobChatter(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(NewHandler(slog.NewTextHandler(&out, nil), NewRecorder()))
	log.Info("Job started", "job", "x")
	log.Info("Agent started")
	if got := out.String(); strings.Contains(got, "Job started") || !strings.Contains(got, "Agent started") {
		t.Errorf("log:\n%s", got)
	}
}

func TestSplitModule(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][2]string{
		"a.b.func1 (pkg/a/b.go:7) (x.y)": {"a.b.func1 (pkg/a/b.go:7)", "x.y"},
		"a.b.func1 (pkg/a/b.go:7)":       {"a.b.func1 (pkg/a/b.go:7)", ""},
		"*job.queuedJob.Start (x)":       {"*job.queuedJob.Start", "x"},
		"*job.queuedJob.Start":           {"*job.queuedJob.Start", ""},
		"":                               {"", ""},
		"(":                              {"(", ""},
	} {
		if name, module := splitModule(in); name != want[0] || module != want[1] {
			t.Errorf("splitModule(%q) = %q, %q; want %q", in, name, module, want)
		}
	}
}
