package k8stables

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/waggle-net/waggle/cells/k8stables/objects"
	"github.com/waggle-net/waggle/pkg/printable"
)

const (
	maxDocuments = 10_000 // of one file, items of Lists included
	maxReason    = 300    // bytes of a reason
)

// parsed is a document and the object in it.
type parsed struct {
	manifest
	object any // a pointer to a row of package k8s; nil unless Status is used
}

// parse reads a whole file. It never fails: what is wrong stands in the documents.
func parse(file, nodeName string, data []byte) []parsed {
	p := parser{file: file, nodeName: nodeName}
	documents, asJSON := split(data), filepath.Ext(file) == ".json"
	if asJSON {
		var err error
		if documents, err = splitJSON(data); err != nil {
			defer func() { p.reject(document{}, err) }()
		}
	}
	for _, d := range documents {
		if len(p.out) >= maxDocuments {
			p.reject(d, fmt.Errorf("more than %d objects in one file: the rest is not read", maxDocuments))
			break
		}
		p.document(d, asJSON)
	}
	return p.out
}

type parser struct {
	file, nodeName string
	out            []parsed
}

func (p *parser) add(d document, item int, m manifest, object any) {
	m.File, m.Line, m.Item = p.file, d.line, item
	m.Kind, m.Name, m.Reason = printable.Short(m.Kind, maxReason), printable.Short(m.Name, maxReason), printable.Short(m.Reason, maxReason)
	p.out = append(p.out, parsed{m, object})
}

func (p *parser) reject(d document, err error) {
	p.add(d, 0, manifest{Status: rejected, Reason: err.Error()}, nil)
}

// document reads one document, or all items of a List.
func (p *parser) document(d document, asJSON bool) {
	data := d.data
	if !asJSON {
		var err error
		if data, err = yaml.YAMLToJSONStrict(d.data); err != nil {
			p.reject(d, errors.New(shiftLines(err.Error(), d.line-1)))
			return
		}
	}
	if string(data) == "null" {
		return // nothing but comments
	}
	list, err := listItems(data)
	if err != nil {
		p.reject(d, err)
		return
	}
	if list == nil {
		p.object(d, 0, data)
		return
	}
	for i, item := range list {
		if len(p.out) >= maxDocuments {
			p.reject(d, fmt.Errorf("more than %d objects in one file: the rest is not read", maxDocuments))
			return
		}
		p.object(d, i+1, item)
	}
}

// object reads one object.
func (p *parser) object(d document, item int, data []byte) {
	var id identity
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &id); err != nil {
		p.add(d, item, manifest{Status: rejected, Reason: err.Error()}, nil)
		return
	}
	m := manifest{Kind: id.Kind, Name: id.name(), Status: used}
	object, err := decode(id, data, p.nodeName)
	if skip := objects.NotForUs(""); errors.As(err, &skip) {
		m.Status, m.Reason, object = ignored, skip.Error(), nil
	} else if err != nil {
		m.Status, m.Reason, object = rejected, err.Error(), nil
	}
	p.add(d, item, m, object)
}

// identity is what every object says about itself.
type identity struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
}

func (i identity) name() string {
	if i.Metadata.Namespace == "" {
		return i.Metadata.Name
	}
	return i.Metadata.Namespace + "/" + i.Metadata.Name
}

// listItems returns the items of a List of any objects, and nil for everything else.
func listItems(data []byte) ([]json.RawMessage, error) {
	var list struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Items      []json.RawMessage `json:"items"`
	}
	var kind struct {
		Kind string `json:"kind"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &kind); err != nil {
		return nil, err
	}
	if kind.Kind != "List" {
		return nil, nil
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &list); err != nil {
		return nil, err
	}
	if list.APIVersion != "v1" {
		return nil, fmt.Errorf("apiVersion of a List is %q, must be v1", list.APIVersion)
	}
	if list.Items == nil {
		list.Items = []json.RawMessage{}
	}
	return list.Items, nil
}

var lineInError = regexp.MustCompile(`\bline (\d+)`)

// shiftLines makes line numbers of a YAML error count from the beginning of the file.
func shiftLines(text string, by int) string {
	return lineInError.ReplaceAllStringFunc(text, func(match string) string {
		n, err := strconv.Atoi(strings.TrimPrefix(match, "line "))
		if err != nil {
			return match
		}
		return "line " + strconv.Itoa(n+by)
	})
}
