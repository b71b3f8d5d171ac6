package hive

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"go.uber.org/dig"
)

// Build is [New] for programs. It converts panics of hive into errors that name, in one sentence, the constructor or flag that
// exists twice, or the constructors that need each other.
func Build(cells ...cell.Cell) (h *upstream.Hive, err error) {
	defer func() {
		if r := recover(); r != nil {
			h, err = nil, explainPanic(r)
		}
	}()
	return New(cells...), nil
}

// Populate builds all objects of h. It returns the error of the failed constructor, whose text is for users, or one sentence
// that names the missing constructor. It starts nothing, so a failed call has changed nothing on the node.
func Populate(h *upstream.Hive, log *slog.Logger) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = explainPanic(r)
		}
	}()
	return explain(h.Populate(log))
}

var (
	provided     = regexp.MustCompile(`cannot provide function (.+?): cannot provide (\S+) from \S+: already provided by (.+)`)
	needs        = regexp.MustCompile(`missing dependencies for function (.+?): missing type`)
	suggestion   = regexp.MustCompile(` \(did you mean [^)]*\)`)
	doubledFlag  = regexp.MustCompile(`'([^']+)' declared twice`)
	cyclicCaller = regexp.MustCompile(`provided by ("[^"]+"\.\S+)`)
)

// explain rewrites an error of dig. dig does not export its error types, and hive passes errors of [New] as the text of a panic, so explain and
// explainPanic match the text, which a test checks.
func explain(err error) error {
	if err == nil {
		return nil
	}
	root := dig.RootCause(err)
	var fromDig dig.Error
	if !errors.As(root, &fromDig) {
		return root // error of a constructor, for instance for a flag's value; its text is for users
	}
	if strings.HasPrefix(root.Error(), "missing type") {
		_, types, _ := strings.Cut(suggestion.ReplaceAllString(root.Error(), ""), ": ")
		if m := needs.FindAllStringSubmatch(err.Error(), -1); m != nil {
			return fault("no constructor provides %s, which %s needs", types, m[len(m)-1][1])
		}
		return fault("no constructor provides %s", types)
	}
	return fault("%s", oneLine(root.Error()))
}

// fault returns an error for a mistake in the program, which users cannot correct.
func fault(format string, args ...any) error {
	return fmt.Errorf("this build of the agent is broken, report it with its version: %w", fmt.Errorf(format, args...))
}

func explainPanic(r any) error {
	text := strings.TrimPrefix(fmt.Sprint(r), "Failed to apply cell: ")
	if m := provided.FindStringSubmatch(text); m != nil {
		return fault("%s is provided twice: by %s and by %s", m[2], m[3], m[1])
	}
	if m := doubledFlag.FindStringSubmatch(text); m != nil {
		return fault("flag --%s is declared by two cells", m[1])
	}
	if strings.Contains(text, "cycle detected") {
		var chain []string
		for _, m := range cyclicCaller.FindAllStringSubmatch(text, -1) {
			chain = append(chain, m[1])
		}
		return fault("constructors depend on each other: %s", strings.Join(chain, " needs "))
	}
	return fault("%s", oneLine(text))
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
