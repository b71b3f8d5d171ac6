package conventions

import (
	"go/scanner"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// idioms are phrases of a dialect that the text of the project does not use: name the noun instead. They are split so that they do not match this file.
var idioms = regexp.MustCompile(`(?i)\b(some` + `body|no` + `body|who` + `ever|who` + `m|what is ` + `not|of ` + `before|the run ` + `before|as it ` + `should|tells ` + `whether|is ` +
	`away|goes on ` + `with)\b`)

// quotation is quoted text, which may be in any words: the output of a program, an identifier or a citation.
var quotation = regexp.MustCompile("\"[^\"\n]*\"|`[^`\n]*`")

// withoutQuotations removes quoted text.
func withoutQuotations(text string) string { return quotation.ReplaceAllString(text, "") }

// idiomsOfGo returns the idioms in the comments and strings of a Go file. A string of a test may quote text.
func idiomsOfGo(source []byte, test bool) (found []string) {
	var s scanner.Scanner
	fset := token.NewFileSet()
	s.Init(fset.AddFile("", fset.Base(), len(source)), source, nil, scanner.ScanComments)
	for {
		_, kind, text := s.Scan()
		switch {
		case kind == token.EOF:
			return found
		case kind == token.COMMENT:
			found = append(found, idioms.FindAllString(withoutQuotations(text), -1)...)
		case kind == token.STRING && strings.Contains(text, " "): // one word is a name
			if text = text[1 : len(text)-1]; test {
				text = withoutQuotations(text)
			}
			found = append(found, idioms.FindAllString(text, -1)...)
		}
	}
}

// idiomsOfPage returns the idioms in a page, code blocks and quoted text excluded.
func idiomsOfPage(text string) (found []string) {
	for i, part := range strings.Split(text, "\n```") {
		if i%2 == 0 { // outside of a code block
			found = append(found, idioms.FindAllString(withoutQuotations(part), -1)...)
		}
	}
	return found
}

// commentOfC is one comment of a C file.
var commentOfC = regexp.MustCompile(`(?s)//[^\n]*|/\*.*?\*/`)

// idiomsOfC returns the idioms in the comments of a C file.
func idiomsOfC(text string) (found []string) {
	for _, comment := range commentOfC.FindAllString(text, -1) {
		found = append(found, idioms.FindAllString(withoutQuotations(comment), -1)...)
	}
	return found
}

// idiomsOfYAML returns the idioms in the comments and values of a YAML file, quoted values included: quotes are syntax there.
func idiomsOfYAML(text string) []string { return idioms.FindAllString(text, -1) }

// idiomsOfScript returns the idioms in the comments of a script of a test.
func idiomsOfScript(text string) (found []string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			found = append(found, idioms.FindAllString(withoutQuotations(line), -1)...)
		}
	}
	return found
}

// textFiles returns the contents of the files with one of these extensions, by path relative to the root.
func textFiles(t *testing.T, extensions ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	if err := walk(func(relative string) error {
		if !slices.Contains(extensions, path.Ext(relative)) {
			return nil
		}
		content, err := os.ReadFile(filepath.Join(top, relative))
		out[relative] = string(content)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestLanguage_UsesNoIdioms(t *testing.T) {
	t.Parallel()
	report := func(path string, found []string) {
		if len(found) == 0 {
			return
		}
		t.Errorf("%s: %q: name the noun in the terms of the field; a quotation stands in quotes", path, found)
	}
	for _, f := range files(t) {
		report(f.path, idiomsOfGo(f.source, f.test()))
	}
	pages, err := filepath.Glob(filepath.Join(root(t), "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"Documentation/*.md", "Documentation/cells/*.md", "Documentation/cells/*/*.md"} {
		more, err := filepath.Glob(filepath.Join(root(t), pattern))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, more...)
	}
	if len(pages) < 50 {
		t.Fatalf("only %d pages found: the search is broken", len(pages))
	}
	for _, page := range pages {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		relative, err := filepath.Rel(root(t), page)
		if err != nil {
			t.Fatal(err)
		}
		report(filepath.ToSlash(relative), idiomsOfPage(string(content)))
	}
	programs, manifests, scripts := textFiles(t, ".c", ".h"), textFiles(t, ".yaml", ".yml"), textFiles(t, ".txtar")
	if len(programs) < 50 || len(manifests) < 10 || len(scripts) < 100 {
		t.Fatalf("only %d C files, %d YAML files and %d scripts found: the search is broken", len(programs), len(manifests), len(scripts))
	}
	for path, text := range programs {
		report(path, idiomsOfC(text))
	}
	for path, text := range manifests {
		report(path, idiomsOfYAML(text))
	}
	for path, text := range scripts {
		report(path, idiomsOfScript(text))
	}
}

func TestLanguage_UsesNoIdioms_Finds(t *testing.T) {
	t.Parallel()
	bad := "the state of " + "before"
	source := "package p\n\n// F has " + bad + ".\nfunc F() string { return \"" + bad + "\" }\n\n// G quotes \"" + bad + "\".\nfunc G() string { return \"no" + "body\" }\n" +
		"func H() string { return `{\"a\": \"" + bad + "\"}` }\n"
	if found := idiomsOfGo([]byte(source), false); len(found) != 3 {
		t.Errorf("in a program: %q", found)
	}
	if found := idiomsOfGo([]byte(source), true); len(found) != 2 {
		t.Errorf("in a test: %q", found)
	}
	if found := idiomsOfPage("# A\n" + bad + ", `" + bad + "`\n```\n" + bad + "\n```\n" + bad + "\n"); len(found) != 2 {
		t.Errorf("in a page: %q", found)
	}
	if found := idiomsOfC("// " + bad + "\nint f(void) { return 0; } /* a `" + bad + "`\n * and " + bad + " */\nchar s[] = \"" + bad + "\";\n"); len(found) != 2 {
		t.Errorf("in C: %q", found)
	}
	if found := idiomsOfYAML("a: {description: \"" + bad + "\"} # " + bad + "\n"); len(found) != 2 {
		t.Errorf("in YAML: %q", found)
	}
	if found := idiomsOfScript("# " + bad + ", \"" + bad + "\"\ndb/cmp " + bad + "\n"); len(found) != 1 {
		t.Errorf("in a script: %q", found)
	}
}
