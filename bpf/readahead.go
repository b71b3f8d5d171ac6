package bpf

import (
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
)

// objects are the objects of the packet programs that [ReadAhead] reads.
type objects struct {
	reading sync.WaitGroup
	specs   map[string]*specPointer // by program; the pointer is nil if the object could not be read, or was taken
}

// specPointer points to a spec.
type specPointer struct {
	spec atomic.Pointer[ebpf.CollectionSpec]
}

func (p *specPointer) get() *ebpf.CollectionSpec  { return p.spec.Load() }
func (p *specPointer) take() *ebpf.CollectionSpec { return p.spec.Swap(nil) }

// ahead holds the objects of the last call of [ReadAhead].
var ahead atomic.Pointer[objects]

// ReadAhead starts to read the objects of all packet programs for the next calls of [MapSpecs] and for the first call of [Load] with each program. This takes
// 40 ms of CPU time, while the process builds its cells on another CPU. MapSpecs must not run at the same time as a first call of Load.
func ReadAhead() {
	o := &objects{specs: make(map[string]*specPointer)}
	of := make(map[string][]string) // programs by object
	for _, program := range Programs() {
		o.specs[program] = new(specPointer)
		of[objectOf(program)] = append(of[objectOf(program)], program)
	}
	for object, programs := range of {
		o.reading.Go(func() { o.read(object, programs) })
	}
	ahead.Store(o)
}

// read reads an object for its programs. After an error, [Load] and [MapSpecs] read it again and return the error.
func (o *objects) read(object string, programs []string) {
	spec, err := read(object)
	if err != nil {
		return
	}
	for _, program := range programs {
		if program == object {
			continue
		}
		if other := spec.Copy(); withoutLinkHeader(other, program) == nil {
			o.specs[program].spec.Store(other)
		}
	}
	o.specs[object].spec.Store(spec)
}

// EndReadAhead frees the objects of [ReadAhead], in a process that loads no programs.
func EndReadAhead() { ahead.Store(nil) }

// of waits until all objects are read, and calls get for one of them. It returns nil if the object is unknown or was taken.
func (o *objects) of(object string, get func(*specPointer) *ebpf.CollectionSpec) *ebpf.CollectionSpec {
	if o == nil || o.specs[object] == nil {
		return nil
	}
	o.reading.Wait()
	return get(o.specs[object])
}
