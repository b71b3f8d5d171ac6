package loader

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/datapath/ctmap"
	"github.com/waggle-net/waggle/pkg/datapath/natmap"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/datapath/sysctlfs"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/socketlboptions"
)

// newKernel returns the real kernel.
func newKernel(maps pinnedmaps.Maps, agent agentconfig.Agent, config Config, options policy.Options, sockets socketlboptions.Options, probe bpf.EncapProbe) (kernel, error) {
	objects := &objects{maps: maps, agent: agent, config: config, options: options, sockets: sockets, probe: probe}
	traffic := &traffic{steps: steps{stepsDir(agent)}, guard: guard{agent: agent}}
	return kernel{Programs: objects, Pods: traffic, Devices: newTCXLinks(traffic, linkDir(agent), objects.Copy), State: stateMap{maps}},
		config.check()
}

// objects loads the embedded programs with the pinned maps.
type objects struct {
	maps     pinnedmaps.Maps
	agent    agentconfig.Agent
	config   Config
	options  policy.Options
	sockets  socketlboptions.Options
	probe    bpf.EncapProbe
	loaded   []io.Closer
	previous []io.Closer // of previous calls of Load

	resizing bool // the programs in loaded use maps of flows whose size is being changed
}

// Load implements programs.
func (o *objects) Load() (map[string]program, error) {
	maps, err := o.maps.All()
	if err != nil {
		return nil, err
	}
	wanted := bpf.Programs()
	if o.sockets.Enabled {
		wanted = append(wanted, bpf.Sock)
	}
	out := make(map[string]program)
	loaded, err := o.load(wanted, maps, out)
	if err != nil {
		return nil, err
	}
	o.previous, o.loaded, o.resizing = append(o.previous, o.loaded...), loaded, pinnedmaps.Resizing(maps) != 0
	return out, nil
}

// load loads all objects or none, adds their programs to out and returns their handles.
func (o *objects) load(names []string, maps map[string]*ebpf.Map, out map[string]program) (loaded []io.Closer, err error) {
	all, err := loadAll(names, func(name string) (func() (object, error), error) { return o.prepare(name, maps) })
	for _, part := range all {
		loaded = append(loaded, part.closers()...)
		if err == nil {
			err = part.describe(out)
		}
	}
	if err != nil {
		closeAll(loaded)
		return nil, err
	}
	return loaded, nil
}

// atOnce is the number of objects that the kernel verifies at the same time. The verifier takes most of the time of a load, on one CPU for each object. More
// objects would take more memory at the same time.
const atOnce = 2

// loadAll loads objects in the order of names. prepare runs in the calling goroutine, because it reads the network namespace of its thread; the functions that it
// returns run concurrently. After an error loadAll begins no object. It then returns the loaded objects with the error of the first name that failed, which is the
// error without concurrency.
func loadAll(names []string, prepare func(name string) (func() (object, error), error)) ([]object, error) {
	all, errs := make([]object, len(names)), make([]error, len(names))
	var running errgroup.Group
	running.SetLimit(atOnce)
	var failed atomic.Bool
	for i, name := range names {
		load, err := prepare(name)
		if err != nil {
			errs[i] = err
			break
		}
		running.Go(func() error {
			if failed.Load() {
				return nil
			}
			all[i], errs[i] = load()
			if errs[i] != nil {
				failed.Store(true)
			}
			return nil
		})
	}
	_ = running.Wait() // the errors are in errs
	return all, cmp.Or(errs...)
}

// Resizing implements programs.
func (o *objects) Resizing() bool { return o.resizing }

// Copy loads another copy of a program that processes packets. The caller must close it.
func (o *objects) Copy(name string) (*ebpf.Program, error) {
	maps, err := o.maps.All()
	if err != nil {
		return nil, err
	}
	load, err := o.prepare(name, maps)
	if err != nil {
		return nil, err
	}
	all, err := load()
	if err != nil {
		return nil, err
	}
	return all.programs[name], nil
}

// object holds the programs of one loaded object.
type object struct {
	programs map[string]*ebpf.Program // programs of hooks, by name
	steps    *ebpf.Map                // the other programs; nil if there are none
}

// closers returns the handles of an object; none if it is not loaded.
func (o object) closers() (all []io.Closer) {
	if o.steps != nil {
		all = append(all, o.steps)
	}
	for _, p := range o.programs {
		all = append(all, p)
	}
	return all
}

// describe adds the programs of an object to out.
func (o object) describe(out map[string]program) error {
	for name, p := range o.programs {
		info, err := p.Info()
		if err != nil {
			return fmt.Errorf("verify program %s: %w", name, err)
		}
		id, _ := info.ID()
		out[name] = program{Name: name, ID: uint32(id), loaded: p, steps: o.steps}
	}
	return nil
}

// prepare reads and configures one object, and returns the function that loads it. Its replacements contain only maps that the object uses, because other ones
// would be an error. A map that belongs to one generation (see bpf.MapSpecs) is not replaced, so the object gets its own.
func (o *objects) prepare(name string, maps map[string]*ebpf.Map) (load func() (object, error), err error) {
	spec, err := bpf.Load(name)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(o.configure(spec, maps), configureResize(spec, maps)); err != nil {
		return nil, fmt.Errorf("configure program %s: %w", name, err)
	}
	options := ebpf.CollectionOptions{MapReplacements: make(map[string]*ebpf.Map)}
	for m := range spec.Maps {
		if shared, found := maps[m]; found {
			options.MapReplacements[m] = shared
			spec.Maps[m].MaxEntries = shared.MaxEntries() // accept any size
		}
	}
	return func() (object, error) { return loadObject(name, spec, options) }, nil
}

// loadObject loads one object into the kernel.
func loadObject(name string, spec *ebpf.CollectionSpec, options ebpf.CollectionOptions) (object, error) {
	collection, err := ebpf.NewCollectionWithOptions(spec, options)
	if err != nil {
		return object{}, fmt.Errorf("load program %s: %w", name, err)
	}
	defer collection.Close()
	out := object{make(map[string]*ebpf.Program, len(collection.Programs)), collection.DetachMap(bpf.MapPodSteps)}
	for program := range spec.Programs {
		if !bpf.IsStep(program) {
			out.programs[program] = collection.DetachProgram(program)
		}
	}
	return out, nil
}

// configure sets the load-time constants of an object.
func (o *objects) configure(spec *ebpf.CollectionSpec, maps map[string]*ebpf.Map) error {
	if v, found := spec.Variables[bpf.VariableSockHostNetns]; found {
		cookie, err := netnsCookie()
		if err == nil {
			err = v.Set(cookie)
		}
		if err != nil {
			return err
		}
	}
	if v, found := spec.Variables[bpf.VariableServiceLoopbackIPv6]; found {
		if err := v.Set(bpf.IPv6Bytes(parsed(o.config.LoopbackIPv6))); err != nil {
			return err
		}
	}
	if err := o.configureNat(spec, maps); err != nil {
		return err
	}
	if o.agent.TunnelPort != 0 {
		if err := o.configureTunnel(spec); err != nil {
			return err
		}
	}
	for name, value := range o.constants(maps) {
		if v, found := spec.Variables[name]; found {
			if err := v.Set(value); err != nil {
				return err
			}
		}
	}
	return nil
}

// configureResize sets the number and the maps of the current change of size, if there is one.
func configureResize(spec *ebpf.CollectionSpec, maps map[string]*ebpf.Map) error {
	number, resized := spec.Variables[bpf.VariableResizeNumber], spec.Variables[bpf.VariableResizeMaps]
	bits := pinnedmaps.Resizing(maps)
	if number == nil || resized == nil || bits == 0 {
		return nil
	}
	var state uint32
	if err := maps[bpf.MapResizeState].Lookup(uint32(0), &state); err != nil {
		return fmt.Errorf("read the number of the resize of maps: %w", err)
	}
	n, _ := bpf.ReadResizeState(state)
	return errors.Join(number.Set(n), resized.Set(bits))
}

// configureTunnel sets the operations that programs may use to encapsulate without the tunnel device, and their source ports: the local port range of the
// kernel, which the device uses too.
func (o *objects) configureTunnel(spec *ebpf.CollectionSpec) error {
	if v := spec.Variables[bpf.VariableEncapModes]; v != nil {
		if err := v.Set(o.probe().Modes); err != nil {
			return err
		}
	}
	first, last := spec.Variables[bpf.VariableEncapPortFirst], spec.Variables[bpf.VariableEncapPortLast]
	if first == nil || last == nil {
		return nil
	}
	const name = "net/ipv4/ip_local_port_range"
	text, err := sysctlfs.Below(o.agent.Procfs).Read(name)
	if err != nil {
		return err
	}
	var ports [2]uint32
	if _, err := fmt.Sscan(text, &ports[0], &ports[1]); err != nil {
		return fmt.Errorf("read setting %s, %q: %w", name, text, err)
	}
	return errors.Join(first.Set(ports[0]), last.Set(ports[1]))
}

func (o *objects) constants(maps map[string]*ebpf.Map) map[string]uint32 {
	dual := o.agent.EnableIPv4 && o.agent.EnableIPv6
	flows := maps[bpf.MapCtEst4].MaxEntries()
	return map[string]uint32{
		bpf.VariableWorldIPv4:           identity.WorldOf(false, dual),
		bpf.VariableWorldIPv6:           identity.WorldOf(true, dual),
		bpf.VariableCtTCPTimeout:        bpf.CtTicks(o.config.TCPTimeout),
		bpf.VariableCtTCPSynTimeout:     bpf.CtTicks(o.config.TCPSynTimeout),
		bpf.VariableCtTCPCloseTimeout:   bpf.CtTicks(o.config.TCPCloseTimeout),
		bpf.VariableCtAnyTimeout:        bpf.CtTicks(o.config.AnyTimeout),
		bpf.VariableCtShare:             ctmap.Share(flows, o.agent.EndpointShare),
		bpf.VariableCtNewRate:           ctmap.NewRate(maps[bpf.MapCtNew4].MaxEntries()),
		bpf.VariableCtGuarantee:         ctmap.Guarantee(flows),
		bpf.VariableCtBeyond:            ctmap.Beyond(flows),
		bpf.VariablePolicyCIDRNodes:     one(o.options.CIDRMatchesNodes),
		bpf.VariableVerdictEvents:       one(o.config.Verdicts),
		bpf.VariableServiceLoopbackIPv4: bpf.IPv4Word(parsed(o.config.LoopbackIPv4)),
		bpf.VariableTunnelPort:          uint32(o.agent.TunnelPort),
		bpf.VariableDirectAccepted:      directAccepted(o.agent),
		bpf.VariableDirectBesideTunnel:  one(o.agent.Hybrid && o.probe().Stack == nil),
		bpf.VariableNatPortFirst:        uint32(o.agent.NodePortMax) + 1,

		bpf.VariableSockHostOnly:       one(o.sockets.HostOnly),
		bpf.VariableSockBindProtection: one(o.sockets.BindProtection),
	}
}

// directAccepted selects the nodes that may send without the tunnel. It is 0 without a tunnel, because the routes to all pods lead out of the node.
func directAccepted(a agentconfig.Agent) uint32 {
	switch {
	case a.Hybrid:
		return bpf.AcceptsAll
	case a.Tunnel():
		return bpf.AcceptsRouted
	}
	return 0
}

// configureNat sets the limits of the numbers of translated flows.
func (o *objects) configureNat(spec *ebpf.CollectionSpec, maps map[string]*ebpf.Map) error {
	of := func(limit func(entries uint32) uint32) (limits [2]uint32) {
		for i, m := range natmap.Maps() {
			limits[i] = limit(maps[m.Name].MaxEntries())
		}
		return limits
	}
	for name, value := range map[string]any{bpf.VariableNatShares: o.natShares(maps), bpf.VariableNatGuarantees: of(natmap.Guarantee),
		bpf.VariableNatBeyond: of(natmap.Beyond)} {
		if v, found := spec.Variables[name]; found {
			if err := v.Set(value); err != nil {
				return err
			}
		}
	}
	return nil
}

// natShares returns, for each family, the quota of translated flows of one endpoint and the quota of all flows without an endpoint.
func (o *objects) natShares(maps map[string]*ebpf.Map) (shares [4]uint32) {
	for i, m := range natmap.Maps() {
		entries := maps[m.Name].MaxEntries()
		shares[2*i], shares[2*i+1] = natmap.Share(entries, o.agent.EndpointShare), natmap.Rest(entries, o.agent.EndpointShare)
	}
	return shares
}

// parsed parses an address that check has accepted.
func parsed(addr string) netip.Addr {
	a, _ := netip.ParseAddr(addr)
	return a
}

func one(yes bool) uint32 {
	if yes {
		return 1
	}
	return 0
}

// Close implements programs. Attached programs stay loaded.
func (o *objects) Close() {
	o.Unload()
	closeAll(o.loaded)
	o.loaded = nil
}

// Unload implements programs.
func (o *objects) Unload() {
	closeAll(o.previous)
	o.previous = nil
}

func closeAll(all []io.Closer) {
	for _, c := range all {
		_ = c.Close()
	}
}
