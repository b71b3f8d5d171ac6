package v1

import (
	"bytes"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// TestGenerated runs the generator and compares its output with the committed files.
func TestGenerated(t *testing.T) {
	t.Parallel()
	document, err := filepath.Abs("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"models", "server"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config, file := redirected(t, name)
			cmd := exec.Command("go", "tool", "oapi-codegen", "-config", config, document)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("run the generator: %v\n%s", err, out)
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(name, name+".gen.go"))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s.gen.go is not what openapi.yaml says: run go generate ./api/v1", name)
			}
		})
	}
}

// redirected returns a configuration of the generator that writes a package to a temporary file.
func redirected(t *testing.T, name string) (config, output string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(name, "generate.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config, output = filepath.Join(dir, "generate.yaml"), filepath.Join(dir, "generated.go")
	changed := bytes.Replace(text, []byte("output: "+name+".gen.go"), []byte("output: "+output), 1)
	if bytes.Equal(changed, text) {
		t.Fatalf("%s/generate.yaml names no output", name)
	}
	if err := os.WriteFile(config, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	return config, output
}

// TestModels_ImportOnlyTime checks that the models import only time, because they are linked into the CNI plugin.
func TestModels_ImportOnlyTime(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "models/models.gen.go", nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range file.Imports {
		if path, _ := strconv.Unquote(spec.Path.Value); path != "time" {
			t.Errorf("models import %s", path)
		}
	}
}
