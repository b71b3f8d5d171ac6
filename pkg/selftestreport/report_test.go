package selftestreport

import (
	"errors"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestReport_RoundTripsThroughFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := Report{BootID: "b", Version: "v1", At: time.Unix(7, 0).UTC(), Steps: []Step{{"ADD", time.Millisecond}}, Error: "why", Folders: "elsewhere"}
	if _, err := Read(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := Write(dir, want); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(dir); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	want.Error, want.Folders = strings.Repeat("ü", maxText), strings.Repeat("ü", maxText)
	if err := Write(dir, want); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(dir); err != nil || len(got.Error) > maxText || len(got.Error) < maxText-3 || got.Folders != got.Error {
		t.Errorf("long texts: %d and %d bytes, %v", len(got.Error), len(got.Folders), err)
	}
	if names, _ := os.ReadDir(dir); len(names) != 1 {
		t.Errorf("files are left: %v", names)
	}
}

func TestRead_RejectsHostileFiles(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"empty": "", "half": `{"bootID":"x"`, "another document": `[]`, "two": `{"bootID":"x","at":"2020-01-01T00:00:00Z"}{}`,
		"no boot id": `{"at":"2020-01-01T00:00:00Z"}`, "no time": `{"bootID":"x"}`, "huge": strings.Repeat(" ", maxSize+1),
		"long folders": `{"bootID":"x","at":"2020-01-01T00:00:00Z","folders":"` + strings.Repeat("e", maxText+1) + `"}`,
		"long":         `{"bootID":"x","at":"2020-01-01T00:00:00Z","error":"` + strings.Repeat("e", maxText+1) + `"}`,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(Path(dir), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := Read(dir); err == nil || !strings.Contains(err.Error(), Path(dir)) || !reflect.DeepEqual(r, Report{}) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	dir := t.TempDir()
	if err := os.Symlink("/dev/zero", Path(dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil {
		t.Error("a symbolic link was followed")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"bootID":"x","at":"2020-01-01T00:00:00Z","steps":[{"name":"ADD","duration":1}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var r Report
		if err := parse(text, &r); err == nil && (r.BootID == "" || r.At.IsZero() || len(r.Error) > maxText) {
			t.Errorf("accepted %+v", r)
		}
	})
}
