package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"
)

// The supervisor starts processes for a parent and sees to it that none of them outlives its purpose.
//
// It reads one JSON command a line from standard input and answers with one JSON event a line on standard output.
// The parent holds the other end of standard input: when the parent ends, however it ends, the supervisor reads end of
// file, ends every process it started and removes the paths it was told to remove. After "detach" it stays until
// SIGTERM. Should the supervisor itself be killed, the kernel kills its children (parent-death signal).
type supervisor struct {
	children []*child
	exits    chan exit
	remove   []string
	detached bool
	events   *json.Encoder
}

// request is one line from the parent.
type request struct {
	// Op is start, stop, remove or detach.
	Op string `json:"op"`
	// Name identifies a child in start and stop.
	Name string `json:"name"`
	// Program and Args are what to run; Env is added to the supervisor's own environment.
	Program string            `json:"program"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
	// Log is the file that standard output and standard error are appended to.
	Log string `json:"log"`
	// GraceSeconds is how long a child has between SIGTERM and SIGKILL; at 0 it is killed at once.
	GraceSeconds float64 `json:"graceSeconds"`
	// Path is what remove deletes, with everything below it, when the supervisor ends.
	Path string `json:"path"`
}

// event is one line to the parent: started, exited or failed.
type event struct {
	Event string `json:"event"`
	Name  string `json:"name"`
	Pid   int    `json:"pid,omitempty"`
	// Status says how the child ended, as in "exit status 1" or "signal: killed".
	Status string `json:"status,omitempty"`
	Error  string `json:"error,omitempty"`
}

type child struct {
	name  string
	cmd   *exec.Cmd
	grace time.Duration
}

type exit struct {
	child  *child
	status string
}

func supervise() int {
	// The parent-death signal follows the thread that forked, so every child is forked from this one.
	runtime.LockOSThread()
	log.SetFlags(log.LstdFlags | log.Lmicroseconds)
	// A session of its own: an interrupt at the terminal reaches the parent, and the parent's end reaches us.
	if _, err := syscall.Setsid(); err != nil {
		log.Printf("setsid: %v", err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	// Once detached nobody reads our events; writing them must not end us.
	signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP)

	s := &supervisor{exits: make(chan exit, 64), events: json.NewEncoder(os.Stdout)}
	requests := make(chan request)
	go readRequests(requests)
	for {
		select {
		case r, open := <-requests:
			if !open {
				requests = nil
				if !s.detached {
					log.Print("the parent is gone; ending all children")
					return s.end()
				}
				continue
			}
			if err := s.handle(r); err != nil {
				log.Printf("%s %s: %v", r.Op, r.Name, err)
				s.send(event{Event: "failed", Name: r.Name, Error: err.Error()})
			}
		case e := <-s.exits:
			s.exited(e)
		case sig := <-signals:
			log.Printf("%v; ending all children", sig)
			return s.end()
		}
	}
}

func readRequests(requests chan<- request) {
	defer close(requests)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			r = request{Op: fmt.Sprintf("unreadable line (%v)", err)}
		}
		requests <- r
	}
}

func (s *supervisor) handle(r request) error {
	switch r.Op {
	case "start":
		return s.start(r)
	case "stop":
		i := slices.IndexFunc(s.children, func(c *child) bool { return c.name == r.Name })
		if i < 0 {
			return errors.New("no such child")
		}
		c := s.children[i]
		s.stop([]*child{c}, time.Duration(r.GraceSeconds*float64(time.Second)))
		return nil
	case "remove":
		s.remove = append(s.remove, r.Path)
		return nil
	case "detach":
		s.detached = true
		return nil
	default:
		return errors.New("unknown operation; want start, stop, remove or detach")
	}
}

func (s *supervisor) start(r request) error {
	if slices.ContainsFunc(s.children, func(c *child) bool { return c.name == r.Name }) {
		return errors.New("a child of this name runs already")
	}
	output, err := os.OpenFile(r.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer output.Close()
	cmd := exec.Command(r.Program, r.Args...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.Env = os.Environ()
	for key, value := range r.Env {
		cmd.Env = append(cmd.Env, key+"="+value)
	}
	// A group of its own, so that what the child starts ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	c := &child{name: r.Name, cmd: cmd, grace: time.Duration(r.GraceSeconds * float64(time.Second))}
	s.children = append(s.children, c)
	go func() {
		err := cmd.Wait()
		status := cmd.ProcessState.String()
		if err != nil {
			status = err.Error()
		}
		s.exits <- exit{c, status}
	}()
	log.Printf("started %s as process %d", c.name, cmd.Process.Pid)
	s.send(event{Event: "started", Name: c.name, Pid: cmd.Process.Pid})
	return nil
}

// stop sends SIGTERM, waits up to grace, then sends SIGKILL and waits for the end.
func (s *supervisor) stop(children []*child, grace time.Duration) {
	if grace > 0 {
		s.signal(children, syscall.SIGTERM)
		s.await(children, time.After(grace))
	}
	s.signal(children, syscall.SIGKILL)
	s.await(children, nil)
}

func (s *supervisor) signal(children []*child, sig syscall.Signal) {
	for _, c := range children {
		if slices.Contains(s.children, c) {
			// The group may already be gone; that is what we want.
			_ = syscall.Kill(-c.cmd.Process.Pid, sig)
		}
	}
}

func (s *supervisor) await(children []*child, limit <-chan time.Time) {
	alive := func(c *child) bool { return slices.Contains(s.children, c) }
	for slices.ContainsFunc(children, alive) {
		select {
		case e := <-s.exits:
			s.exited(e)
		case <-limit:
			return
		}
	}
}

func (s *supervisor) exited(e exit) {
	s.children = slices.DeleteFunc(s.children, func(c *child) bool { return c == e.child })
	// What the child left behind in its group goes with it.
	_ = syscall.Kill(-e.child.cmd.Process.Pid, syscall.SIGKILL)
	log.Printf("%s ended: %s", e.child.name, e.status)
	s.send(event{Event: "exited", Name: e.child.name, Pid: e.child.cmd.Process.Pid, Status: e.status})
}

// end stops the children that asked for a grace period first, while the others still serve them, then the rest.
func (s *supervisor) end() int {
	var graceful []*child
	var longest time.Duration
	for _, c := range s.children {
		if c.grace > 0 {
			graceful = append(graceful, c)
			longest = max(longest, c.grace)
		}
	}
	s.stop(graceful, longest)
	s.stop(slices.Clone(s.children), 0)
	code := 0
	for _, path := range s.remove {
		if err := os.RemoveAll(path); err != nil {
			log.Printf("remove %s: %v", path, err)
			code = 1
		}
	}
	return code
}

func (s *supervisor) send(e event) {
	// The reader may be gone; the log has it too.
	_ = s.events.Encode(e)
}
